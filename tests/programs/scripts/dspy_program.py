"""A DSPy program with the default cache: a prediction, reasoning, and the same question once more."""

import dspy

dspy.configure(lm=dspy.LM("openai/gpt-4o"))
ask = dspy.Predict("question -> answer")
print(ask(question="How deep is the fjord?").answer)
think = dspy.ChainOfThought("question -> answer")
found = think(question="And the sea?")
print(found.reasoning, found.answer)
print(ask(question="How deep is the fjord?").answer)
print(len(dspy.settings.lm.history))
