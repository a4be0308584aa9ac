"""Documents as bodies. The registry checks them and knows every problem at once; OpenAPI sees their shape."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar.openapi.spec import OpenAPIType, Reference, Schema
from litestar.params import Body

from headgate.datasources.prepared import DatasourceOptions
from headgate.web.bodies import Object


def _schema(found: Object, definitions: Object) -> Schema:
    """A JSON Schema as pydantic writes it, for Litestar."""
    if "$ref" in found:
        return _schema(definitions[found["$ref"].rpartition("/")[2]], definitions)
    properties: dict[str, Reference | Schema] = {
        name: _schema(one, definitions) for name, one in found.get("properties", {}).items()
    }
    return Schema(
        type=OpenAPIType(found["type"]) if "type" in found else None,
        title=found.get("title"),
        description=found.get("description"),
        default=found.get("default"),
        enum=found.get("enum"),
        minimum=found.get("minimum"),
        maximum=found.get("maximum"),
        any_of=[_schema(one, definitions) for one in found["anyOf"]] if "anyOf" in found else None,
        items=_schema(found["items"], definitions) if "items" in found else None,
        properties=properties or None,
        additional_properties=found.get("additionalProperties"),
    )


def _side(name: str) -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        description=f"The {name}'s connector and its options; `GET /api/connectors/{{name}}` has their schema.",
        properties={"type": Schema(type=OpenAPIType.STRING, description="The connector's name.")},
        required=["type"],
        additional_properties=True,
    )


_OPTIONS = DatasourceOptions.model_json_schema()
_PROPERTIES = {
    "enabled": Schema(type=OpenAPIType.BOOLEAN, description="Whether it should run; by default it should."),
    "source": _side("source"),
    "mapping": Schema(type=OpenAPIType.OBJECT, description="From record to row.", additional_properties=True),
    "sink": _side("sink"),
    "fixtures": Schema(
        type=OpenAPIType.OBJECT,
        description="Inputs and the results that they should have. They come with `/api/apply` only.",
        additional_properties=True,
    ),
    **{name: _schema(one, _OPTIONS.get("$defs", {})) for name, one in _OPTIONS["properties"].items()},
}

Document: TypeAlias = Annotated[
    Object,
    Body(
        title="DatasourceDocument",
        description="A datasource as its author writes it.",
        schema_extra={
            "properties": _PROPERTIES,
            "required": ["source", "sink"],
            "additional_properties": False,
        },
    ),
]
"""One datasource."""

NamedDocument: TypeAlias = Annotated[
    Object,
    Body(
        title="NamedDatasourceDocument",
        description="A datasource as its author writes it, with its name.",
        schema_extra={
            "properties": {"name": Schema(type=OpenAPIType.STRING, description="Its name."), **_PROPERTIES},
            "required": ["name", "source", "sink"],
            "additional_properties": False,
        },
    ),
]
"""One datasource and its name."""

Documents: TypeAlias = Annotated[
    Object,
    Body(
        title="Documents",
        description="Many datasources: either `datasources`, by name, or a file's text as `yaml`.",
        schema_extra={
            "properties": {
                "datasources": Schema(
                    type=OpenAPIType.OBJECT,
                    additional_properties=Schema(type=OpenAPIType.OBJECT, additional_properties=True),
                ),
                "yaml": Schema(type=OpenAPIType.STRING),
                "file": Schema(type=OpenAPIType.STRING, description="What to call the file in error messages."),
            },
            "additional_properties": False,
        },
    ),
]
"""Many datasources."""
