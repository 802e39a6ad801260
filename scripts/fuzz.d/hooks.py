"""Adds what schemathesis cannot know: existing images, addresses and ids. Also checks that the code
of every problem is declared."""
import datetime
import io
import json
import os
import pathlib
import zipfile

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.core.parameters import ParameterLocation

FACTS = json.loads(pathlib.Path(os.environ["FUZZ_FACTS"]).read_text())
KEY = os.environ["FUZZ_KEY"]
PICTURES = [pathlib.Path(path).read_bytes() for path in FACTS["pictures"]]
# The responses of every operation, for the report.
ANSWERS = open(os.environ["FUZZ_ANSWERS"], "a", encoding="utf-8")  # noqa: SIM115, it lives as long as the process
PROBLEM = "application/problem+json"
# Headers that the document declares for any response.
HEADERS = set()

# Images and other bytes. A schema cannot distinguish the two.
FILES = st.one_of(st.sampled_from(PICTURES), st.sampled_from(PICTURES), st.binary(max_size=200))
for content_type in ("image/*", "video/*", "application/octet-stream"):
    schemathesis.openapi.media_type(content_type, FILES)
schemathesis.openapi.format("binary", FILES)


def archive(picture):
    """Returns an archive with a picture of one person."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as writer:
        writer.writestr("Somebody/picture.jpg", picture)
    return buffer.getvalue()


ARCHIVES = st.one_of(st.sampled_from([archive(picture) for picture in PICTURES]), st.binary(max_size=200))
schemathesis.openapi.media_type("application/zip", ARCHIVES)
# All generated addresses are on loopback, because no other host may receive requests.
schemathesis.openapi.format("uri", st.sampled_from(FACTS["urls"]))


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Replaces the addresses of files in examples with addresses of the service, which serves these
    files. Removes the examples of forms and of videos, because `@portrait.jpg` and `film.mp4` stand
    for files but would be sent literally."""
    # The event stream of alerts does not end.
    raw_schema["paths"].pop("/alerts/events", None)
    for item in raw_schema["paths"].values():
        for operation in item.values():
            HEADERS.update(name for response in operation["responses"].values() for name in response["headers"])
            request = operation.get("requestBody", {})
            for content in (one for body in (request, *operation["responses"].values()) for one in body.get("content", {}).values()):
                for example in content.get("examples", {}).values():
                    if "externalValue" in example:
                        example["externalValue"] = FACTS["base"] + example["externalValue"]
            contents = request.get("content", {})
            contents.get("multipart/form-data", {}).pop("example", None)
            if "video/*" in contents or "application/zip" in contents:
                for kind in contents.keys() - {"application/json"}:
                    contents[kind].pop("example", None)
    for schema in raw_schema["components"]["schemas"].values():
        for field in schema.get("properties", {}).values():
            if "binary" in (field.get("format"), field.get("items", {}).get("format")):
                field.pop("example", None)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replaces three of four ids with existing ids, cursors with real ones, sites with host names,
    and empty periods, because a schema cannot describe which of these are valid. Parts that are invalid on purpose stay invalid, and
    ids from earlier responses are not replaced."""
    if case.meta is None:
        return spare(case)
    wrong = {location for location, info in case.meta.components.items() if info.mode.is_negative}
    if ParameterLocation.PATH not in wrong and case.path_parameters and case.meta.phase.name.value != "stateful":
        name_what_exists(case)
    spare(case)
    if ParameterLocation.QUERY not in wrong and case.query:
        keep_the_gallery(case, case.query)
        order_the_period(case.query)
        if "site" in case.query:
            # The service rejects texts that are not host names, and a schema cannot describe them.
            case.query["site"] = ("127.0.0.1", "example.org")[len(str(case.query["site"])) % 2]
        if case.query.pop("cursor", None) and (cursor := second_page(case)):
            case.query["cursor"] = cursor
    if ParameterLocation.BODY not in wrong and isinstance(case.body, dict):
        keep_the_gallery(case, case.body)
        if case.path == "/collections/{id}" and case.meta.phase.name.value == "stateful":
            # Later requests of the same scenario use the collection's name in their path. After it
            # got a new name, they would rightly get 404, which schemathesis reports as a failure.
            case.body.pop("name", None)
        if case.path.startswith("/watchlists"):
            watch_somebody(case)
        if case.path == "/subjects/import" and isinstance(case.body.get("archive"), bytes):
            case.body["archive"] = archive(PICTURES[0])
        if case.path.endswith("/merge"):
            case.body["subjects"] = FACTS["ids"]["subjects"]["doomed"][-1:]
        if case.path == "/subjects/{id}/faces" and case.body.get("face_ids"):
            # No other operation uses this face together with a subject.
            case.body |= {"face_ids": FACTS["ids"]["faces"]["kept"][-1:], "force": True, "move": True}


def second_page(case):
    """Returns the cursor of the second page of a list. A cursor is valid only for one list with the
    same filters, so the first page is requested with one entry. Returns `None` if the list has no
    second page, or if the request fails."""
    address = FACTS["base"] + case.formatted_path
    answer = requests.get(address, params=dict(case.query) | {"limit": 1}, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
    return answer.json().get("next_cursor") if answer.ok else None


def name_what_exists(case):
    """Inserts existing ids. A face that is removed from a subject belongs to this subject, because
    both pools have the same order."""
    resource = case.path.split("/")[1]
    pair = "face_id" in case.path_parameters
    # A camera that is stopped sends no pictures to other operations.
    changes = case.method == "DELETE" or case.path in ("/streams/{id}/start", "/streams/{id}/stop")
    kind = "doomed" if changes and not pair else "kept"
    pools = {"id": FACTS["ids"][resource][kind], **({"face_id": FACTS["ids"]["faces"][kind]} if pair else {})}
    followed = case.path.endswith("/events")
    if followed:
        # The first crawl has ended, as have all videos. The event streams of the other crawls would
        # not end.
        pools["id"] = pools["id"][:1]
    number = sum(str(sorted(case.path_parameters.items())).encode())
    if followed or number % 4 or case.path_parameters["id"] in ("default", "gallery"):
        index = number % min(map(len, pools.values()))
        case.path_parameters |= {name: pool[index] for name, pool in pools.items()}


def watch_somebody(case):
    """Inserts people who exist, because a watchlist must watch somebody. Removes the expiry, because
    a schema cannot express that a time is in the future."""
    if case.method == "POST" or "subjects" in case.body:
        case.body["subjects"] = FACTS["ids"]["subjects"]["kept"][:2]
    if case.body.get("faces"):
        case.body["faces"] = FACTS["ids"]["faces"]["kept"][:1]
    if case.method == "POST":
        case.body["collection"] = "gallery"
    case.body.pop("expires_at", None)


def spare(case):
    """Protects the key and the collections that the other requests use. If a case would change one
    of them because its id comes from an earlier response, another id is used."""
    ids = FACTS["ids"]
    # This script knows the gallery only under this name.
    collections = (["default", "gallery", ids["collections"]["kept"][0]], ids["collections"]["doomed"])
    needed, others = {
        ("POST", "/keys/{id}/revoke"): ([FACTS["own_key"]], ids["keys"]["kept"]),
        ("DELETE", "/collections/{id}"): collections,
        ("PATCH", "/collections/{id}"): collections,
    }.get((case.method, case.path), ([], []))
    if case.path_parameters and case.path_parameters.get("id") in needed:
        case.path_parameters["id"] = others[0]


def keep_the_gallery(case, values):
    """Keeps erasures away from the collection that other requests read."""
    if case.path == "/erasures" and values.get("collection") == "gallery":
        values["collection"] = "default"


def order_the_period(values):
    """Exchanges `since` and `until` if `since` is later, and removes `until` if they are equal,
    because a schema cannot compare two fields."""
    try:
        since, until = (datetime.datetime.fromisoformat(values[name].upper().replace("Z", "+00:00")) for name in ("since", "until"))
        if since > until:
            values["since"], values["until"] = values["until"], values["since"]
        elif since == until:
            del values["until"]
    except (KeyError, AttributeError, TypeError, ValueError):
        # One of them is missing or is not a time.
        return


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Ignores failures for forms that are generated as invalid but are valid when they are sent. A
    field without values is not sent at all, bytes are sent as a file (the check expects the text of
    the schema), and a single file is read as a list with one file."""
    if not isinstance(failure, AcceptedNegativeData) or case.media_type != "multipart/form-data" or not isinstance(case.body, dict):
        return True
    if any(info.mode.is_negative for location, info in case.meta.components.items() if location != ParameterLocation.BODY):
        return True
    sent = {name: value for name, value in case.body.items() if value not in ([], {})}
    return set(sent) != {"image"} or not (isinstance(sent["image"], bytes) or case.path == "/faces/detect/batch")


class Undeclared(Failure):
    """Signals that a response contains something that the OpenAPI document does not declare."""


@schemathesis.check
def problems_are_declared(ctx, response, case):
    """Checks that every problem code is among the examples of its status, and that the OpenAPI
    document declares the headers of the response."""
    definition = case.operation.definition.raw["responses"].get(str(response.status_code))
    code = None
    if response.headers.get("content-type", [""])[0] == PROBLEM:
        problem = json.loads(response.content)
        code = problem["code"]
        if problem["status"] != response.status_code or problem["request_id"] != response.headers["x-request-id"][0]:
            raise Undeclared(operation=case.operation.label, title="The problem and the head of its answer differ", message=response.text)
    print(json.dumps([case.operation.label, response.status_code, code]), file=ANSWERS, flush=True)
    if definition is None or code is None:
        return
    declared = definition.get("content", {}).get(PROBLEM, {}).get("examples", {})
    if code not in declared:
        raise Undeclared(operation=case.operation.label, title="A problem that is not declared", message=f"{response.status_code} {code}; declared are {', '.join(declared)}: {response.text}")


@schemathesis.check
def headers_are_declared(ctx, response, case):
    """Checks that a header that the OpenAPI document declares for any response is declared for
    every response that contains it."""
    definition = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    if surplus := HEADERS & response.headers.keys() - definition.get("headers", HEADERS):
        raise Undeclared(operation=case.operation.label, title="A header that is not declared", message=f"{response.status_code}: {', '.join(sorted(surplus))}")
