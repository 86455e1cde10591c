"""Issues of a repository by PyGithub: found, opened and commented on, in threads."""

import os
from concurrent.futures import ThreadPoolExecutor

from github import Auth, Github
from openai import OpenAI

github = Github(base_url=os.environ["SERVER_URL"], auth=Auth.Token("stub"))
repository = github.get_repo("o/depths")
model = OpenAI()


def opened(number: int) -> str:
    chat = model.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": f"Title {number}?"}])
    issue = repository.create_issue(chat.choices[0].message.content, body="It is deeper.")
    return f"{issue.number} {issue.title}"


print(repository.full_name, repository.id)
with ThreadPoolExecutor(3) as pool:
    print(*pool.map(opened, range(5)), sep="\n")
