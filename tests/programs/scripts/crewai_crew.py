"""A crew of two as the quick start has it: all settings are the defaults."""

from crewai import Agent, Crew, Process, Task
from crewai.tools import tool


@tool("depth")
def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


scout = Agent(role="Scout", goal="Find depths", backstory="You measure fjords.", llm="gpt-4o", tools=[depth])
writer = Agent(role="Writer", goal="Write notes", backstory="You write short notes.", llm="gpt-4o")
find = Task(description="How deep is the fjord?", expected_output="A number of metres", agent=scout)
write = Task(description="Write it down", expected_output="One line", agent=writer, context=[find])
crew = Crew(agents=[scout, writer], tasks=[find, write], process=Process.sequential)
result = crew.kickoff()
print(result.raw)
for output in result.tasks_output:
    print(output.agent, output.raw)
print(result.token_usage.total_tokens)
