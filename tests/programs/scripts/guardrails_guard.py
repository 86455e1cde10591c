"""Guardrails: a guard with a validator that asks again, and a streamed answer; its telemetry as it comes."""

from guardrails import Guard, OnFailAction
from guardrails.validators import FailResult, PassResult, Validator, register_validator


@register_validator(name="even", data_type="string")
class Even(Validator):
    """Accepts the second answer."""

    asked = 0

    def _validate(self, value, metadata):
        Even.asked += 1
        return PassResult() if Even.asked > 1 else FailResult(error_message=f"not this: {value}")


guard = Guard().use(Even(on_fail=OnFailAction.REASK))
found = guard(model="gpt-4o", messages=[{"role": "user", "content": "How deep is the fjord?"}], num_reasks=2)
print(found.validated_output, found.validation_passed, guard.history.last.iterations.length)
for piece in guard(model="gpt-4o", messages=[{"role": "user", "content": "And the sea?"}], stream=True):
    print(piece.validated_output, end="|")
print()
