"""A structured output against its schema: a pydantic model, or a JSON Schema."""

from __future__ import annotations

from typing import Any

from .._engine.gate import here
from ..errors import ContractViolationError

__all__ = ["validate"]


def validate(name: str, output: Any, schema: Any) -> None:
    """Raise ``ContractViolationError``, recorded as ``contract.violated``, if ``output`` does not satisfy ``schema``."""
    problem = _problem(output, schema)
    if problem is None:
        return
    scope = here()
    seq = None
    if scope is not None:
        seq = scope.session.note(scope, "contract.violated", name, input=output, output=problem)
    raise ContractViolationError(
        f"the decision {name!r} does not satisfy its schema: {problem}",
        run_id=None if scope is None else scope.session.run_id,
        step=seq,
        output=output,
        next_action="ask the model for structured output of this shape, or mend the schema",
    )


def _problem(output: Any, schema: Any) -> str | None:
    if hasattr(schema, "model_validate"):
        try:
            schema.model_validate(output.model_dump() if hasattr(output, "model_dump") else output, strict=False)
        except ValueError as error:
            return str(error)
        return None
    if isinstance(schema, dict):
        return _against_json_schema(output, schema)
    raise TypeError(f"a schema is a pydantic model or a JSON Schema (dict), not {schema!r}")


def _against_json_schema(output: Any, schema: dict[str, Any]) -> str | None:
    try:
        import jsonschema
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "checking a decision against a JSON Schema needs jsonschema: pip install 'tracekit-replay[schema]'"
        ) from None
    try:
        jsonschema.validate(output, schema)
    except jsonschema.ValidationError as error:
        return f"{error.json_path}: {error.message}"
    return None
