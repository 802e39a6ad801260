"""The queries of the dashboard and of the alerts, and their checks."""
import json
import re
import time
import urllib.parse

from _service import MONITORING, call, fail, say, wait_for

# Queries without data in this test, by panel and metric, with the reason.
WITHOUT_DATA = {
    ("GPU memory", "facecrawl_gpu_memory_bytes"): "needs a GPU",
    ("GPU utilization", "facecrawl_gpu_utilization"): "needs a GPU",
    ("Rare events", "facecrawl_job_panics_total"): "needs a fault in the program",
}
# Alerts whose condition holds at some time during the work of this test.
RAISED = {"FacecrawlDown", "FacecrawlErrors", "FacecrawlOverloaded", "FacecrawlQueueErrors", "FacecrawlGpuFallback", "FacecrawlConnectionsFull"}
# A fallback value would hide a wrong name.
FALLBACK = re.compile(r" or vector\(0\)$")


class Prometheus:
    def __init__(self, base):
        self.base, self.began = base, time.time()

    def ask(self, path, **parameters):
        answer = call(f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        if answer["status"] != "success" or answer.get("warnings"):
            fail(f"{path} {parameters}: {answer}")
        return answer["data"]

    def now(self, query):
        """Returns the largest current value of a query, or 0."""
        return max((float(one["value"][1]) for one in self.ask("query", query=query)["result"]), default=0.0)

    def series(self, query):
        """Returns the labels and the numbers of each series since the start. NaN is not a number: a
        quotient or a quantile has this value while nothing happens."""
        result = self.ask("query_range", query=query, start=self.began, end=time.time(), step=1)["result"]
        found = [(one["metric"], [float(value) for _, value in one["values"] if value != "NaN"]) for one in result]
        return [(labels, values) for labels, values in found if values]


def panels():
    """Yields panel, query and legend of each target of the dashboard, with Grafana's variables replaced."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            if "$" in query:
                fail(f"{panel['title']}: {query}: a variable without a value")
            yield panel["title"], query, target.get("legendFormat", "")


def check_variables(prometheus):
    """Checks that the query of each variable of the dashboard returns values."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for variable in dashboard["templating"]["list"]:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        if not (values := prometheus.ask(f"label/{label}/values", **{"match[]": selector})):
            fail(f"the variable {variable['name']} has no values")
        say(f"variable {variable['name']}: {len(values)} values")


def check_panels(prometheus):
    """Runs each query of the dashboard. Returns the failures."""
    failures, empty = [], set()
    for title, query, legend in panels():
        found = prometheus.series(query) and prometheus.series(FALLBACK.sub("", query))
        exceptions = [key for key in WITHOUT_DATA if key[0] == title and key[1] in query]
        empty.update(exceptions)
        if not found and not exceptions:
            failures.append(f"{title}: no data: {query}")
        unknown = {name for name in re.findall(r"{{(\w+)}}", legend) if any(name not in labels for labels, _ in found)}
        if unknown:
            failures.append(f"{title}: the legend {legend} uses {sorted(unknown)}, which the series of {query} lack")
        shown = f"{len(found)} series" if found else f"no data: {WITHOUT_DATA[exceptions[0]] if exceptions else 'FAILED'}"
        print(f"  {title}: {legend}: {shown}")
    failures += [f"{key}: no such query in the dashboard" for key in WITHOUT_DATA.keys() - empty]
    return failures


def check_alerts(prometheus):
    """Waits until each alert was evaluated, then checks for errors, and that the expected conditions
    held. Returns the failures."""
    def evaluated():
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return all(rule["health"] != "unknown" for rule in rules) and rules

    failures, names = [], set()
    for rule in wait_for("Prometheus evaluates the alerts", evaluated):
        names.add(rule["name"])
        if rule["health"] != "ok":
            failures.append(f"{rule['name']}: {rule.get('lastError')}")
        held = bool(prometheus.series(rule["query"]))
        if rule["name"] in RAISED and not held:
            failures.append(f"{rule['name']}: its condition never held: {rule['query']}")
        print(f"  {rule['name']}: no error, its condition {'held' if held else 'did not hold'}")
    return failures + [f"{name}: there is no such alert" for name in RAISED - names]
