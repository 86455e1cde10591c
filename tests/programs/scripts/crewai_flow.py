"""A CrewAI flow: steps side by side, a router, a state, calls of models in between."""

from crewai import LLM
from crewai.flow.flow import Flow, and_, listen, router, start
from pydantic import BaseModel


class State(BaseModel):
    id: str = ""
    depth: str = ""
    height: str = ""
    rounds: int = 0


class Measure(Flow[State]):
    @start()
    def depth(self):
        self.state.depth = LLM(model="gpt-4o").call("How deep is the fjord?")

    @start()
    async def height(self):
        self.state.height = LLM(model="gpt-4o").call("How high is the hill?")

    @listen(and_(depth, height))
    def both(self):
        return f"{self.state.depth} {self.state.height}"

    @router(both)
    def again(self):
        self.state.rounds += 1
        return "done" if len(self.state.depth) > 3 else "more"

    @listen("done")
    def write(self, found):
        return LLM(model="gpt-4o").call(f"Write {found}: {self.state.depth}, {self.state.height}")


flow = Measure(suppress_flow_events=True)  # it prints those from threads, in any order
print(flow.kickoff())
print(flow.state.id, flow.state.rounds)
