"""Creates the test data through the API itself: faces, images, people, crawls, collections and
jobs."""
import time

import requests

# Number of items of each kind that are reserved for operations that cannot be undone. The other
# items are kept for operations that only read.
DOOMED = 30
VIDEOS = 20
WATCHLISTS = 40


class Api:
    """Sends requests that must succeed."""

    def __init__(self, base, secret):
        self.base, self.session = base, requests.Session()
        if secret:
            self.session.headers["authorization"] = f"Bearer {secret}"

    def ask(self, method, path, **options):
        answer = self.session.request(method, self.base + path, timeout=60, **options)
        if not answer.ok:
            raise SystemExit(f"fuzz-api: {method} {path} answered {answer.status_code}: {answer.text}")
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.content

    def until(self, path, over):
        """Repeats the request until the state in the response is one of `over`, and returns this
        response."""
        for _ in range(1200):
            answer = self.ask("GET", path)
            if answer["state"] in over:
                return answer
            time.sleep(0.1)
        raise SystemExit(f"fuzz-api: {path} stays {answer}")


def crawl(api, **options):
    """Creates a crawl and returns it when it has ended."""
    made = api.ask("POST", "/crawls", json={"delay_ms": 0} | options)
    return api.until(f"/crawls/{made['id']}", ("completed", "failed", "cancelled"))


def seed(api, site):
    """Fills the service with data. Returns the ids of the data by resource, separated
    into ids of data that must be kept and ids of data that may be deleted."""
    gallery = api.ask("POST", "/collections", json={"name": "gallery"})["id"]
    crawled = crawl(api, seeds=[f"{site}/"], dedupe="exact", collection="gallery")
    if crawled["counts"]["faces"] < 20:
        raise SystemExit(f"fuzz-api: the gallery has too few faces: {crawled}")
    faces = [face["id"] for face in api.ask("GET", "/faces?collection=gallery&limit=1000")["faces"]]
    images = [image["id"] for image in api.ask("GET", "/images?collection=gallery&limit=1000")["images"]]
    crawls = {"kept": [crawled["id"]], "doomed": []}
    for number in range(DOOMED):
        crawls["doomed"].append(crawl(api, seeds=[f"{site}/0-0.jpg"])["id"])
        # These crawls wait five minutes between two pages, so they run during the whole fuzzing.
        running = api.ask("POST", "/crawls", json={"seeds": [f"{site}/more/{number}"], "delay_ms": 300_000})
        crawls["kept"].append(running["id"])
    subjects = [api.ask("POST", "/subjects", json={"name": f"Person {number}", "collection": "gallery"})["id"] for number in range(2 * DOOMED)]
    for subject, face in zip(subjects, faces):
        api.ask("POST", f"/subjects/{subject}/faces", json={"face_ids": [face], "force": True})
    api.ask("POST", "/collections/gallery/cluster", json={})
    api.until("/collections/gallery/cluster", ("completed",))
    watchlists, alerts = watch(api, subjects, f"{site}/0-0.jpg")
    # These collections are identified by their ids, because their names can change.
    scratch = [api.ask("POST", "/collections", json={"name": f"scratch-{number}"})["id"] for number in range(DOOMED)]
    nothing = [{"url": f"{site}/nothing-{number}.jpg"} for number in range(DOOMED)]
    erasures = [api.ask("POST", "/erasures", json=one)["erasure"]["id"] for one in nothing]
    # They begin like videos and cannot be decoded, so they end within a moment. The service needs
    # ffmpeg to accept them.
    header = {"content-type": "video/x-flv"}
    videos = [api.ask("POST", "/videos", data=b"FLV\x01" + bytes([number]) * 300, headers=header)["id"] for number in range(VIDEOS)]
    # Without authentication no key can be created or revoked over HTTP, so the key that the command
    # line created is the only key.
    keys = [key["id"] for key in api.ask("GET", "/keys")["keys"]]
    if api.ask("GET", "/keys/current")["asks_for_keys"]:
        holders = [{"name": f"Holder {number}", "collection": "gallery", "scopes": ["read"]} for number in range(DOOMED)]
        keys = [api.ask("POST", "/keys", json=holder)["key"]["id"] for holder in holders]
    jobs = [job["id"] for job in api.ask("GET", "/jobs?state=any&limit=100")["jobs"]]
    return {
        "faces": halves(faces),
        "images": halves(images),
        "crawls": crawls,
        "subjects": halves(subjects),
        "watchlists": halves(watchlists),
        "alerts": {"kept": alerts, "doomed": alerts},
        "streams": cameras(api),
        "collections": {"kept": [gallery, scratch.pop()], "doomed": scratch},
        "erasures": halves(erasures),
        "jobs": {"kept": jobs, "doomed": jobs},
        "videos": halves(videos),
        "keys": {"kept": keys, "doomed": keys},
    }


def cameras(api):
    """Waits until the cameras of the configuration are watched. Returns their ids."""
    for _ in range(600):
        streams = api.ask("GET", "/streams")["streams"]
        if len(streams) >= 2 and all(stream["state"] == "running" for stream in streams):
            return {"kept": [streams[0]["id"]], "doomed": [streams[1]["id"]]}
        time.sleep(0.1)
    raise SystemExit(f"fuzz-api: the cameras are not watched: {streams}")


def watch(api, subjects, picture):
    """Creates watchlists that match every face, and alerts about a new face. Returns the ids."""
    wanted = {"purpose": "To test", "collection": "gallery", "subjects": subjects[:3], "threshold": -1, "quality_profile": "off"}
    watchlists = [api.ask("POST", "/watchlists", json=wanted | {"name": f"Watchlist {number}"})["id"] for number in range(WATCHLISTS)]
    # The file differs from that in the gallery, so its face is new.
    file = requests.get(picture, timeout=30).content + b"\0"
    api.ask("POST", f"/subjects/{subjects[-1]}/faces", params={"force": "true"}, data=file, headers={"content-type": "image/jpeg"})
    for _ in range(600):
        alerts = [alert["id"] for alert in api.ask("GET", "/alerts?collection=gallery&limit=1000")["alerts"]]
        if len(alerts) >= WATCHLISTS:
            break
        time.sleep(0.1)
    else:
        raise SystemExit(f"fuzz-api: only {len(alerts)} alerts of {WATCHLISTS} watchlists")
    # These alerts had no webhook, so they can be delivered again.
    for watchlist in watchlists:
        api.ask("PATCH", f"/watchlists/{watchlist}", json={"webhook": "http://127.0.0.1:9/"})
    return watchlists, alerts


def halves(ids):
    return {"kept": ids[::2], "doomed": ids[1::2]}
