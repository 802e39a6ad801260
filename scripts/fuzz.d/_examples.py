"""Checks every example of the OpenAPI document strictly against its schema. A field that the schema
does not declare is also an error."""
import copy

import jsonschema_rs


def mistakes(document):
    """Returns the errors as sentences, and the number of examples checked."""
    strict = closed(copy.deepcopy(document))
    known = {"components": strict["components"], "open": document["components"]}
    found, seen = [], 0
    for place, schema, example in examples(strict):
        seen += 1
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **known}
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        found += [f"{place}: {'/'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(example)]
    return found, seen


def closed(schema):
    """Forbids unknown fields in objects with known fields. A part of an `allOf`, also if it is
    referenced, still allows unknown fields, because the object as a whole forbids them."""
    if isinstance(schema, dict):
        for name, part in schema.items():
            if name not in ("example", "examples"):
                closed(part)
        if isinstance(schema.get("allOf"), list) or isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            schema["unevaluatedProperties"] = False
        for part in schema.get("allOf", []):
            part.pop("unevaluatedProperties", None)
            if "$ref" in part:
                part["$ref"] = part["$ref"].replace("#/components/", "#/open/")
    elif isinstance(schema, list):
        for part in schema:
            closed(part)
    return schema


def examples(document):
    """Yields the place, the schema and the value of every example."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            place = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", []):
                if "example" in parameter:
                    yield f"{place} {parameter['name']}", parameter["schema"], parameter["example"]
            bodies = {"request": operation.get("requestBody", {}), **operation["responses"]}
            for name, body in bodies.items():
                for content_type, content in body.get("content", {}).items():
                    for value in values(content):
                        yield f"{place} {name} {content_type}", content["schema"], value
    for name, header in document["components"]["headers"].items():
        yield f"header {name}", header["schema"], header["example"]
    for name, example in document["components"]["examples"].items():
        yield f"problem {name}", document["components"]["schemas"]["Problem"], example["value"]
    for name, schema in document["components"]["schemas"].items():
        yield from parts(f"schema {name}", schema)


def values(content):
    if "example" in content:
        yield content["example"]
    yield from (example["value"] for example in content.get("examples", {}).values() if "value" in example)


def parts(place, schema):
    """Yields the examples of a schema and of its fields, each with its own schema."""
    yield from ((place, schema, example) for example in [*schema.get("examples", []), *([schema["example"]] if "example" in schema else [])])
    for name, field in schema.get("properties", {}).items():
        yield from parts(f"{place}.{name}", field)
