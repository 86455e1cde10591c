"""The agent frameworks: which packages count as user code, and which of them only send telemetry.

A framework makes ids and dates that reach prompts and results, so its clock readings and random numbers belong to the run. Its
exporters and their threads do not.
"""

from __future__ import annotations

from tracekit.integration import Ambient, Integration

__all__ = ["integration"]

integration = Integration(
    "frameworks",
    frameworks=(
        "langchain",
        "langchain_core",
        "langchain_classic",
        "langchain_community",
        "langchain_openai",
        "langchain_anthropic",
        "langgraph",
        "agents",
        "pydantic_ai",
        # Not pydantic_graph: all that it draws is names of nodes in a graph that is built once a process.
        "instructor",
        "litellm",
        "crewai",
        "smolagents",
        "autogen_core",
        "autogen_agentchat",
        "autogen_ext",
        "llama_index",
        "dspy",
        "strands",
        "agno",
        "google.adk",
        "haystack",
        "semantic_kernel",
    ),
    background=(
        "agents.tracing",
        "langsmith",
        "langfuse",
        "opentelemetry",
        "logfire",
        "posthog",
        "sentry_sdk",
        "ddtrace",
        "crewai.telemetry",
        "traceloop",
        "openinference",
    ),
    ambient=(
        Ambient("api.smith.langchain.com", variable="LANGSMITH_ENDPOINT"),
        Ambient("cloud.langfuse.com", variable="LANGFUSE_HOST"),
        Ambient("telemetry.crewai.com"),
    ),
)
