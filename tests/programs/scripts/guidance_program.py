"""Guidance: a program of two questions."""

from guidance import assistant, gen, system, user
from guidance.models import OpenAI

lm = OpenAI("gpt-4o", echo=False)
with system():
    lm += "Be brief."
for place in ("fjord", "sea"):
    with user():
        lm += f"How deep is the {place}?"
    with assistant():
        lm += gen(name=place)
    print(lm[place])
print(str(lm))
