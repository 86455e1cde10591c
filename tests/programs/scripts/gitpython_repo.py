"""GitPython: a repository made and read, by commands and by processes that stay and are asked again and again."""

import os
from pathlib import Path

from git import Actor, GitCommandError, Repo
from openai import OpenAI

client = OpenAI()
author = Actor("Ada", "ada@example.org")
repository = Repo.init("gitpython_repo_work")
notes = Path(repository.working_tree_dir) / "notes.md"
for number in range(3):
    chat = client.chat.completions.create(
        model="gpt-5.2", messages=[{"role": "user", "content": f"A line for commit {number}"}]
    )
    notes.write_text(chat.choices[0].message.content + "\n")
    repository.index.add(["notes.md"])
    print(repository.index.commit(f"note {number}", author=author, committer=author).hexsha)
for commit in repository.iter_commits():
    blob = commit.tree / "notes.md"
    print(commit.message, commit.authored_datetime.isoformat(), blob.data_stream.read().decode().strip())
first, last = [*repository.iter_commits()][-1], repository.head.commit
print(first.diff(last, create_patch=True)[0].diff.decode())
print(repository.git.log("--oneline"), repository.is_dirty(), [*repository.untracked_files])
repository.create_head("aside", first).checkout()
notes.write_text("aside\n")
print(repository.git.status("--porcelain"), repository.active_branch)
try:
    repository.git.merge("nowhere")
except GitCommandError as error:
    print(error.status, error.stderr.strip())
print(sorted(os.listdir(repository.working_tree_dir)))
