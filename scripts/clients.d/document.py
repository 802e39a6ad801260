"""Reads the OpenAPI document of the service for the generators of the clients."""
import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of the path, the query or the headers."""

    name: str
    schema: dict
    required: bool
    description: str


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation. `body` and the values of `responses` map content types to schemas."""

    id: str
    method: str
    path: str
    tag: str
    summary: str
    description: str
    path_parameters: tuple
    query_parameters: tuple
    header_parameters: tuple
    body: dict
    body_required: bool
    responses: dict

    @property
    def success(self):
        """The content types and schemas of all responses with a status 2xx."""
        merged = {}
        for status, content in sorted(self.responses.items()):
            if status.startswith("2"):
                merged.update(content)
        return merged

    @property
    def may_be_empty(self):
        """Whether a response with a status 2xx has no body."""
        return any(status.startswith("2") and not content for status, content in self.responses.items())


class Document:
    """The operations, in the order of the document, and the schemas by name."""

    def __init__(self, text):
        document = json.loads(text)
        self.version = document["info"]["version"]
        self.schemas = document["components"]["schemas"]
        self.operations = [
            operation(method, path, found)
            for path, item in document["paths"].items()
            for method, found in item.items()
        ]


def operation(method, path, found):
    def parameters(place):
        return tuple(
            Parameter(item["name"], item["schema"], item.get("required", False), item.get("description", ""))
            for item in found.get("parameters", [])
            if item["in"] == place
        )

    def content(item):
        return {name: media.get("schema", {}) for name, media in item.get("content", {}).items()}

    body = found.get("requestBody", {})
    return Operation(
        id=found["operationId"],
        method=method.upper(),
        path=path,
        tag=found.get("tags", [""])[0],
        summary=found.get("summary", ""),
        description=found.get("description", ""),
        path_parameters=parameters("path"),
        query_parameters=parameters("query"),
        header_parameters=parameters("header"),
        body=content(body),
        body_required=body.get("required", False),
        responses={status: content(response) for status, response in found["responses"].items()},
    )


def reference(schema):
    """Returns the name of the schema that a `$ref` refers to, or None."""
    target = schema.get("$ref")
    return target.rsplit("/", 1)[-1] if target else None
