"""Tests of the operations against a real service."""
from __future__ import annotations

import datetime
import inspect
import io
import pickle
import re
import subprocess
import sys

import numpy
import PIL.Image
import pytest
from conftest import respond

import facecrawl

RENAMED = {"a": "image_a", "b": "image_b"}
BASE64 = "image_base64"


# ---- Every operation ----


def body_fields(document, operation):
    """Returns the names of the fields of the JSON body, and of the files of other bodies."""

    def resolve(schema):
        name = schema.get("$ref")
        return document["components"]["schemas"][name.rsplit("/", 1)[-1]] if name else schema

    content = operation.get("requestBody", {}).get("content", {})
    fields = set()
    for media in content.values():
        schema = resolve(media["schema"])
        for one in schema.get("oneOf", [schema]):
            fields |= set(resolve(one).get("properties", {}))
    return {RENAMED.get(name, name) for name in fields - {BASE64}}


@pytest.mark.parametrize("kind", [facecrawl.Client, facecrawl.AsyncClient])
def test_every_operation_has_a_method_with_all_parameters(client, kind):
    document, seen = client.get_openapi(), 0
    for path, item in document["paths"].items():
        for operation in item.values():
            seen += 1
            name = operation["operationId"]
            arguments = inspect.signature(getattr(kind, name)).parameters
            parameters = {one["name"] for one in operation.get("parameters", [])}
            fields = body_fields(document, operation)
            if "image" in fields and "images" in arguments:
                fields.discard("image")
            assert parameters | fields <= set(arguments), name
            for one in operation.get("parameters", []):
                assert (arguments[one["name"]].default is inspect.Parameter.empty) == one.get("required", False)
            assert operation["summary"].split()[0] in getattr(kind, name).__doc__
            if "cursor" in parameters:
                pages = inspect.signature(getattr(kind, name.replace("list_", "iter_"))).parameters
                assert set(arguments) - {"limit", "cursor"} == set(pages) - {"page_size"}
    assert seen >= 88


def test_both_clients_have_the_same_methods():
    def methods(kind):
        return {name for name in dir(kind) if not name.startswith("_")} - {"close", "aclose"}

    assert methods(facecrawl.Client) == methods(facecrawl.AsyncClient)


def test_types_can_be_imported_and_read():
    from typing import get_type_hints

    from facecrawl.types import ImageAnswer, StoredFace

    assert {"id", "quality"} <= set(get_type_hints(StoredFace))
    assert "quality" in StoredFace.__optional_keys__ and "id" in StoredFace.__required_keys__
    assert {"faces", "id"} <= ImageAnswer.__required_keys__


@pytest.mark.parametrize("module", ["_operations", "_types"])
def test_descriptions_say_none_instead_of_null(module):
    source = inspect.getsource(sys.modules[f"facecrawl.{module}"])
    assert "None means" in source
    assert not re.search(r"\bnull\b", source, re.IGNORECASE)


# ---- Images ----


def test_all_forms_of_an_image_have_the_same_faces(client, png, tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(png)
    image = PIL.Image.open(path)
    array = numpy.asarray(image)
    with open(path, "rb") as file:
        forms = [str(path), path, png, bytearray(png), memoryview(png), io.BytesIO(png), file, image, image.convert("RGBA"), array, array[::-1][::-1]]
        found = [client.detect_faces(form, embeddings=False)["faces"] for form in forms]
    assert len(found[0]) >= 10
    assert all(faces == found[0] for faces in found)


def test_grey_images_have_faces(client, png):
    grey = PIL.Image.open(io.BytesIO(png)).convert("L")
    faces = [client.detect_faces(form, embeddings=False)["faces"] for form in (grey, numpy.asarray(grey))]
    assert len(faces[0]) >= 10 and faces[0] == faces[1]


def test_a_url_is_fetched_by_the_service(client, site, portraits):
    own = client.detect_faces(portraits[0])["faces"]
    for arguments in ({"image": f"{site}/0.jpg"}, {"url": f"{site}/0.jpg"}):
        assert client.detect_faces(**arguments)["faces"] == own


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (numpy.zeros((8, 8, 3), "float32"), ValueError, "uint8"),
        (numpy.zeros((8, 8, 4), "uint8"), ValueError, "height, width, 3"),
        (numpy.zeros((0, 8, 3), "uint8"), ValueError, "not an image"),
        (io.StringIO("text"), TypeError, "text mode"),
        (7, TypeError, "an image is a path"),
        ("no such file.jpg", FileNotFoundError, "no such file.jpg"),
        (None, TypeError, "exactly one of image, url is required"),
    ],
)
def test_other_images_are_rejected(client, image, error, message):
    with pytest.raises(error, match=re.escape(message)):
        client.detect_faces(image)


def test_two_sources_are_rejected(client):
    with pytest.raises(TypeError, match="2 are given"):
        client.search_faces(b"x", face_id="y")


def test_an_erasure_does_not_take_a_url_as_an_image(client):
    with pytest.raises(TypeError, match="cannot be a URL here"):
        client.create_erasure("https://example.org/portrait.jpg", dry_run=True)


def test_a_batch_takes_a_list(client, portraits, site):
    for images in (portraits[:2], [portraits[0], f"{site}/1.jpg"]):
        results = client.detect_faces_batch([*images, b"no image"])["results"]
        assert [len(result["faces"]) for result in results[:2]] == [1, 1]
        assert results[2]["problem"]["code"] == "not_an_image"
    with pytest.raises(TypeError, match="is a list"):
        client.detect_faces_batch("portrait.jpg")
    with pytest.raises(facecrawl.Problem):
        client.detect_faces_batch([])


def test_faces_are_compared(client, portraits, site):
    same = client.compare_faces(portraits[0], f"{site}/0.jpg")
    other = client.compare_faces(portraits[0], PIL.Image.open(portraits[1]), threshold=0.9)
    assert same["match"] and same["similarity"] > 0.99
    assert not other["match"] and other["threshold"] == pytest.approx(0.9)


def test_an_enhanced_image_is_bytes(client, portraits):
    content = client.enhance_image(portraits[0], accept="image/jpeg")
    assert PIL.Image.open(io.BytesIO(content)).format == "JPEG"
    assert PIL.Image.open(io.BytesIO(client.enhance_image(portraits[0]))).format == "PNG"


def test_pillow_and_numpy_are_not_imported():
    code = "import sys, facecrawl; sys.exit('numpy' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_arrays_without_pillow_are_explained():
    code = """
import sys
sys.modules["PIL"] = sys.modules["PIL.Image"] = None
import facecrawl, numpy
try:
    facecrawl.Client().detect_faces(numpy.zeros((8, 8), "uint8"))
except ImportError as error:
    sys.exit("pip install pillow" not in str(error))
sys.exit(1)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- Crawls, lists and exports ----


def test_a_crawl_reports_its_progress(crawled, site):
    crawl, progress = crawled
    assert crawl["state"] == "completed", crawl["error"]
    assert crawl["seeds"] == [f"{site}/"]
    assert crawl["counts"]["faces"] >= 6
    assert progress and progress[-1]["id"] == crawl["id"] and progress[-1]["state"] == "completed"


def test_a_search_finds_the_image(client, crawled, portraits, site):
    for number, portrait in enumerate(portraits):
        best = client.search_faces(portrait, limit=3)["matches"][0]
        assert best["similarity"] > 0.95
        assert best["sources"][0]["image_url"] == f"{site}/{number}.jpg"


def test_a_search_takes_a_stored_face_and_an_embedding(client, crawled, portraits):
    embedding = client.detect_faces(portraits[0])["faces"][0]["embedding"]
    by_list = client.search_faces(embedding=embedding, limit=1)["matches"][0]
    by_array = client.search_faces(embedding=numpy.array(embedding, "float32"), limit=1)["matches"][0]
    assert by_list["face_id"] == by_array["face_id"]
    by_face = client.search_faces(face_id=by_list["face_id"], threshold=-1)
    assert by_face["probe"]["kind"] == "face"
    assert by_list["face_id"] not in [match["face_id"] for match in by_face["matches"]]


def test_iterators_yield_all_pages(client, crawled):
    crawl_id = crawled[0]["id"]
    page = client.list_faces(crawl_id=crawl_id, limit=2)
    assert len(page["faces"]) == 2 and page["next_cursor"]
    all_faces = client.list_faces(crawl_id=crawl_id, limit=1000)["faces"]
    paged = list(client.iter_faces(crawl_id=crawl_id, page_size=2))
    assert paged == all_faces and len(paged) >= 6
    images = list(client.iter_images(crawl_id=crawl_id, page_size=1))
    assert len(images) == 6
    sources = list(client.iter_image_sources(images[0]["id"], page_size=1))
    assert [source["crawl_id"] for source in sources] == [crawl_id]


def test_an_export_yields_lines_or_bytes(client, crawled):
    crawl_id = crawled[0]["id"]
    with client.export_crawl(crawl_id) as lines:
        images = list(lines)
    assert len(images) == 6 and all(line["kind"] == "image" for line in images)
    table = b"".join(client.export_crawl(crawl_id, format="csv"))
    assert table.count(b"\n") >= 7 and b"image_id" in table.splitlines()[0]
    unread = client.export_crawl(crawl_id)
    unread.close()
    assert list(unread) == []


def test_events_end_with_the_crawl(client, crawled):
    events = list(client.follow_crawl(crawled[0]["id"]))
    assert [event.event for event in events] == ["done"]
    assert events[0].data["counts"]["faces"] >= 6


def test_alerts_are_followed(client, crawled, portraits):
    subject = client.create_subject(name="Ada Example")["id"]
    face = client.search_faces(portraits[1], limit=1)["matches"][0]["face_id"]
    client.enrol_subject_faces(subject, face_ids=[face], force=True)
    watchlist = client.create_watchlist(name="Guests", purpose="To test", subjects=[subject])
    with client.follow_alerts() as alerts:
        # The file differs from the one of the crawl, so its face is new.
        other = client.create_subject(name="Other")["id"]
        client.enrol_subject_faces(other, portraits[1].read_bytes() + b"\0", force=True)
        alert = next(alerts)
    assert alert.event == "alert" and alert.data["watchlist_id"] == watchlist["id"]
    assert alert.id == str(alert.data["sequence"])
    assert client.list_alerts(watchlist_id=watchlist["id"])["alerts"][0]["id"] == alert.data["id"]
    assert client.delete_watchlist(watchlist["id"]) is None


# ---- Changes, deletions and problems ----


def test_none_removes_a_value_and_an_absent_argument_keeps_it(client):
    subject = client.create_subject(name="Ada", external_id="x-1")["id"]
    assert client.update_subject(subject, name="Grace")["external_id"] == "x-1"
    changed = client.update_subject(subject, external_id=None, name=facecrawl.UNSET)
    assert changed["external_id"] is None and changed["name"] == "Grace"


def test_deletions_have_a_dry_run_and_a_token(client):
    client.create_collection(name="scratch")
    preview = client.delete_collection("scratch", dry_run=True)
    assert preview["dry_run"] and preview["faces"] == 0
    assert client.get_collection("scratch")["name"] == "scratch"
    assert client.delete_collection("scratch", confirm=preview["confirm"]) is None
    with pytest.raises(facecrawl.Problem) as caught:
        client.get_collection("scratch")
    assert caught.value.code == "not_found"


def test_problems_have_code_detail_and_request_id(client):
    with pytest.raises(facecrawl.Problem) as caught:
        client.list_faces(limit=0)
    found = caught.value
    assert (found.status, found.code, found.document["field"]) == (400, "bad_query", "limit")
    assert found.detail and found.request_id in str(found)
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_times_are_text_or_datetimes(client, crawled):
    since = datetime.datetime.fromisoformat(crawled[0]["created_at"].replace("Z", "+00:00"))
    assert client.list_faces(since=since)["faces"] == client.list_faces(since=since.isoformat())["faces"]
    with pytest.raises(facecrawl.Problem):
        client.list_faces(since=datetime.datetime.now())


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_ids_cannot_select_another_operation(client, id):
    with pytest.raises(ValueError, match="is not an id"):
        client.delete_collection(id)


def test_ids_are_escaped(scripted):
    seen = []

    def answer(request):
        seen.append(request.path)
        respond(request, 200, {})

    with facecrawl.Client(scripted(answer).url + "/prefix/") as client:
        client.get_collection("../faces?a#b/ü")
    assert seen == ["/prefix/collections/..%2Ffaces%3Fa%23b%2F%C3%BC"]


def test_text_and_json_without_types(client):
    assert "# HELP" in client.get_metrics()
    assert client.health_live() and client.health_ready()
