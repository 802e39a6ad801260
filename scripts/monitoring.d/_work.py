"""The work that gives the panels of the dashboard something to show."""
import re
import signal
import socket
import threading

from _service import call, fail, request, say, wait_for

# More connections than one address may open. The alert on connections needs more than 360.
CONNECTIONS = 390


def crawl(api, *seeds, **options):
    """Creates a crawl and returns it when it has ended."""
    made = call(f"{api}/crawls", {"seeds": list(seeds)} | options)
    return wait_for(f"the crawl {seeds} ends", lambda: (seen := call(f"{api}/crawls/{made['id']}"))["state"] in ("completed", "failed") and seen)


def value(base, metric):
    """Returns the sum of a metric over its labels."""
    text = request(f"{base}/metrics")[1].decode()
    return sum(float(number) for number in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.M))


def at_once(count, *arguments):
    """Sends the same request `count` times at once and waits for the responses."""
    senders = [threading.Thread(target=request, args=arguments) for _ in range(count)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def of_callers(api, portrait):
    """Sends requests of callers: accepted ones, rejected ones, and more at a time than allowed."""
    for path in ("/faces/detect", "/faces/search", "/images/quality"):
        call(f"{api}{path}", portrait, "image/jpeg")
    request(f"{api}/images/enhance", portrait, "image/jpeg")
    for path, body in (("/faces/detect", b"not an image"), ("/nothing", None)):
        if not 400 <= (status := request(f"{api}{path}", body, "image/jpeg")[0]) < 500:
            fail(f"{path} answered {status}")

    def overload():
        at_once(12, f"{api}/faces/detect", portrait, "image/jpeg")
        return value(api, 'facecrawl_http_requests_total{[^}]*status="429"[^}]*}')

    wait_for("a request is rejected with 429", overload)


def of_crawls(api, site, portraits, group):
    """Crawls the site twice with a webhook, then finds a larger version of an image, and a suppressed
    person in the image `group`."""
    (name, portrait), *_ = portraits.items()
    for collection in ("gallery", "originals", "versions"):
        call(f"{api}/collections", {"name": collection})
    for _ in range(2):
        crawl(api, f"{site.url}/", collection="gallery", max_pages_per_directory=1, webhook=f"{site.url}/hook")
    crawl(api, f"{site.url}/{name}", collection="originals")
    [image] = call(f"{api}/images?collection=originals")["images"]
    site.files["/small.jpg"] = ("image/jpeg", request(f"{api}/images/{image['id']}/thumbnail")[1])
    for path in ("small.jpg", name):
        crawl(api, f"{site.url}/{path}", collection="versions")
    call(f"{api}/erasures?collection=gallery&suppress=false&suppress_person=true", portrait, "image/jpeg")
    site.files["/group.png"] = ("image/png", group)
    crawl(api, f"{site.url}/group.png", collection="gallery")


def lost_workers(api, site, start_worker):
    """Suspends a worker until its job is rescued, and kills the worker that rescued it. The job then
    runs alone."""
    first, first_base = start_worker("worker-1")
    made = call(f"{api}/crawls", {"seeds": [f"{site.url}/held.jpg"]})
    wait_for("the first worker requests the image", lambda: site.held_requests == 1)
    first.send_signal(signal.SIGSTOP)
    second, second_base = start_worker("worker-2")
    wait_for("the second worker takes the job over", lambda: site.held_requests == 2)
    if value(second_base, "facecrawl_queue_rescued_total") < 1:
        fail("the second worker runs a job that was not rescued")
    first.send_signal(signal.SIGCONT)
    wait_for("the late result of the first worker is rejected", lambda: value(first_base, "facecrawl_queue_stale_total") >= 1)
    second.kill()
    wait_for("the job runs alone in the first worker", lambda: value(first_base, "facecrawl_queue_alone_total") >= 1)
    site.release.set()
    wait_for("the crawl of the rescued job ends", lambda: call(f"{api}/crawls/{made['id']}")["state"] == "completed")


def cut_database(api, worker, proxy):
    """Cuts the connections to Postgres until the API and the worker have counted the errors."""
    with proxy.cut():
        at_once(40, f"{api}/collections")
        wait_for("requests fail with 5xx", lambda: value(api, 'facecrawl_http_requests_total{[^}]*status="5[^}]*}'))
        wait_for("a scrape counts that the queue cannot be read", lambda: value(api, "facecrawl_scrape_errors_total") >= 2)
        wait_for("a worker counts failed calls", lambda: value(worker, "facecrawl_queue_errors_total") >= 3)
        wait_for("a call is retried", lambda: value(api, "facecrawl_database_retries_total") + value(worker, "facecrawl_database_retries_total") >= 1)
    wait_for("the API is ready again", lambda: request(f"{api}/health/ready")[0] == 200)


def exhaust_connections(api, scraped):
    """Opens more connections than one address may have, and holds them until `scraped` is true."""
    host, port = api.removeprefix("http://").split(":")
    opened = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    try:
        wait_for("Prometheus sees the connections", scraped)
    finally:
        for one in opened:
            one.close()
