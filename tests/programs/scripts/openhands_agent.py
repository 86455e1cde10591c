"""A coding agent of the OpenHands SDK: a conversation with a file editor, and its terminal, a shell that stays."""

import os

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalAction
from openhands.tools.terminal.impl import TerminalExecutor

model = LLM(model="openai/gpt-4o", api_key="stub", base_url=os.environ["OPENAI_BASE_URL"], usage_id="agent")
agent = Agent(llm=model, tools=[Tool(name=FileEditorTool.name), Tool(name=TaskTrackerTool.name)])
conversation = Conversation(agent=agent, workspace=os.getcwd())
conversation.send_message("How deep is the fjord?")
conversation.run()
for event in conversation.state.events:
    print(type(event).__name__, event.id, event.timestamp)
terminal = TerminalExecutor(working_dir=os.getcwd(), terminal_type="subprocess")
for command in ("echo a note > notes.txt && cat notes.txt", "export DEPTH=1300", "echo $DEPTH; date +%s%N"):
    seen = terminal(TerminalAction(command=command))
    print(seen.exit_code, seen.text)
terminal.close()
