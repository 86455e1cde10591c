"""The module's own client, made at the first call."""

import openai

openai.api_key = "sk-none"
openai.max_retries = 1


def ask(text):
    chat = openai.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


print(ask("Who are you?"))
print(openai.embeddings.create(model="text-embedding-3-small", input="one").data[0].embedding)
print(openai.responses.create(model="gpt-5.2", input="And who am I?").output_text)
