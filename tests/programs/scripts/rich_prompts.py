"""A command line of Typer and Rich: prompts, a progress bar, a table."""

import os

import httpx
import typer
from rich.console import Console
from rich.progress import Progress
from rich.prompt import Confirm, IntPrompt, Prompt
from rich.table import Table

URL = os.environ["STUB_URL"]
app = typer.Typer()
console = Console()


@app.command()
def main(count: int = 3) -> None:
    who = Prompt.ask("Who", default="me")
    count = IntPrompt.ask("How many", default=count)
    if not Confirm.ask("Sure?"):
        raise typer.Exit(1)
    table = Table(title=f"for {who}")
    table.add_column("number")
    table.add_column("answer")
    with Progress(console=console) as progress:
        task = progress.add_task("asking", total=count)
        for number in range(count):
            table.add_row(str(number), httpx.get(f"{URL}/rows/{number}").json()["said"])
            progress.advance(task)
    console.print(table)
    console.log("done")


app()
