"""The programs, and the environments that they run in."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.programs.harness import Row, notebooks
from tests.support.stub_provider import words

__all__ = ["ENVIRONMENTS", "ROWS"]

#: What is installed beside the wheel, for each environment.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "providers": (
        "openai[realtime]", "anthropic[bedrock,vertex]", "google-genai", "boto3", "cohere", "ollama", "mistralai", "groq",
    ),
    "more providers": ("aioboto3", "voyageai", "huggingface_hub", "aiohttp"),
    "langchain": ("langchain", "langchain-openai", "langgraph", "langgraph-checkpoint-sqlite", "langsmith"),
    "langchain-mcp": ("langchain", "langchain-openai", "langchain-mcp-adapters"),
    "openai-agents": ("openai-agents",),
    "instructor": ("instructor",),
    "strands": ("strands-agents[openai]",),
    "agno": ("agno", "openai", "sqlalchemy[asyncio]"),
    "google-adk": ("google-adk",),
    "google-adk-litellm": ("google-adk", "litellm"),
    "llama-index": ("llama-index-core", "llama-index-llms-openai"),
    "prompts": (
        "magentic", "mirascope[openai]", "outlines", "guidance", "pocketflow", "openai",
    ),
    "deep-agents": ("deepagents", "langgraph-supervisor", "langgraph-swarm", "langchain-openai"),
    "beeai": ("beeai-framework",),
    "ag2": ("ag2[openai]",),
    "agentscope": ("agentscope",),
    "dbos": ("dbos", "openai"),
    "workers": ("dramatiq", "taskiq", "burr", "openai"),
    "streamlit": ("streamlit", "openai"),
    "prefect": ("prefect", "openai"),
    "lancedb": ("lancedb", "openai"),
    "crewai": ("crewai",),
    "dspy": ("dspy",),
    "haystack": ("haystack-ai",),
    "autogen": ("autogen-agentchat", "autogen-ext[openai]"),
    "semantic-kernel": ("semantic-kernel",),
    "smolagents": ("smolagents[openai]",),
    "litellm": ("litellm",),
    "pydantic-ai": ("pydantic-ai-slim[openai,mcp]", "logfire"),
    "pydantic-graph": ("pydantic-graph", "pydantic-evals", "pydantic-ai-slim[openai]"),
    "memories": ("mem0ai", "chromadb", "openai"),
    "guardrails": ("guardrails-ai",),
    "mcp": ("mcp",),
    "fastmcp": ("fastmcp",),
    "mini-swe-agent": ("mini-swe-agent", "mcp"),
    "aider": ("aider-chat",),
    "shell-gpt": ("shell-gpt",),
    "inspect": ("inspect-ai", "openai"),
    "deepeval": ("deepeval", "openai"),
    "llm": ("llm",),
    "services": ("fastapi", "uvicorn", "httpx", "openai", "celery[sqlalchemy]", "huey"),
    "everyday": ("apscheduler", "sqlalchemy[asyncio]", "aiosqlite", "rich", "typer", "fastapi", "websockets", "httpx"),
    "more everyday": ("tenacity", "aiocache", "cachetools", "joblib", "diskcache", "python-telegram-bot[job-queue]", "openai", "httpx"),
    "ragas": ("ragas", "langchain-community<0.4", "openai"),
    "swarms": ("swarms",),
    "lightrag": ("lightrag-hku", "openai"),
    "web": ("flask[async]", "rq", "fakeredis", "openai"),
    "claude-agent": ("claude-agent-sdk",),
    "tables": ("duckdb", "polars", "pandas", "pyarrow", "faiss-cpu", "openai"),
    "tools": ("gitpython", "docker", "openai"),
    "playwright": ("playwright", "openai"),
    "business": ("stripe", "slack-sdk", "slack-bolt", "pygithub", "openai", "httpx", "aiohttp"),
    "storage": ("boto3", "moto[server]"),
    "camel": ("camel-ai", "mcp<2"),
    "langroid": ("langroid",),
    "django": ("django", "openai"),
    "openhands": ("openhands-sdk", "openhands-tools"),
    "pipecat": ("pipecat-ai[openai]", "openai"),
    "a2a": ("a2a-sdk[http-server]", "openai"),
    "gradio": ("gradio", "openai"),
    "wandb": ("wandb", "openai"),
    "mlflow": ("mlflow", "openai"),
    "jupyter": ("nbclient", "ipykernel", "openai"),
    "telemetry": ("openai", "langsmith", "langfuse", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "sentry-sdk"),
}  # fmt: skip


def fields(body: dict[str, Any]) -> str:
    """What DSPy reads its fields from."""
    return f"[[ ## reasoning ## ]]\n{words()}\n\n[[ ## answer ## ]]\n{words()}\n\n[[ ## completed ## ]]"


def deep(body: dict[str, Any]) -> dict[str, Any]:
    """Fields for Instructor, of which some are refused the first time."""
    metres = random.choice((1, 5)) if len(body["messages"]) == 1 else 5
    return {body["tools"][0]["function"]["name"]: {"place": words(), "metres": metres}}


def final(body: dict[str, Any]) -> str | None:
    """A call of the tool where there is one, then an answer in the form that CrewAI asks for."""
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        return None
    return f"Thought: I know it.\nFinal Answer: {words()}"


def code(body: dict[str, Any]) -> str:
    """Code for smolagents: first a call of the tool, then the answer."""
    steps = sum(message["role"] == "assistant" for message in body["messages"])
    line = "found = depth('fjord')\nprint(found)" if not steps else "final_answer(found)"
    return f"Thought: {words()}\n<code>\n{line}\n</code>"


def both(body: dict[str, Any]) -> dict[str, Any] | None:
    """Calls of all tools in one answer to a user's question."""
    if body["messages"][-1]["role"] != "user":
        return None
    return {tool["function"]["name"]: {"place": words()} for tool in body["tools"]}


def team(body: dict[str, Any]) -> str | dict[str, Any]:
    """For smolagents: a manager whose code asks an agent, which calls its two tools at once, then answers."""
    tools = [tool["function"]["name"] for tool in body.get("tools", ())]
    if not tools:
        steps = sum(message["role"] == "assistant" for message in body["messages"])
        line = "found = scout('Look at the fjord.')\nprint(found)" if not steps else "final_answer(found)"
        return f"Thought: {words()}\n<code>\n{line}\n</code>"
    if not any(message["role"] == "assistant" for message in body["messages"]):
        return {name: {"place": words()} for name in tools if name != "final_answer"}
    return {"final_answer": {"answer": words()}}


def commands(body: dict[str, Any]) -> dict[str, Any]:
    """What mini-SWE-agent runs, one command after another."""
    lines = (
        "echo a note > notes.txt && ls -la",
        "date +%s%N; cat notes.txt",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    )
    steps = sum(message["role"] == "assistant" for message in body["messages"])
    return {"bash": {"command": lines[min(steps, 2)]}}


def edit(body: dict[str, Any]) -> str:
    """A change of a file in the form that Aider asks for."""
    if "SEARCH/REPLACE" not in str(body["messages"]):
        return f"feat: {words()}"
    block = f"<<<<<<< SEARCH\nThe fjord is deep.\n=======\nThe fjord is {words()} deep.\n>>>>>>> REPLACE"
    return f"Here:\n\naider_edit.txt\n```\n{block}\n```\n"


def judged(body: dict[str, Any]) -> str:
    """The judgement that DeepEval asks for."""
    return json.dumps({"score": random.randint(5, 9), "reason": words()})


def verdict(body: dict[str, Any]) -> dict[str, Any] | str | None:
    """The judgement that Ragas asks for."""
    if "pass or fail" not in str(body["messages"]):
        return None
    said = {"value": random.choice(("pass", "fail")), "reason": words()}
    return {body["tools"][0]["function"]["name"]: said} if body.get("tools") else json.dumps(said)


def entities(body: dict[str, Any]) -> str | None:
    """What LightRAG takes from a text, and from a question."""
    asked = str(body["messages"])
    if "keywords" in asked and "JSON" in asked:
        return json.dumps({"high_level_keywords": ["depths"], "low_level_keywords": ["fjord"]})
    if "entity" in asked and "relation" in asked:
        return (
            f"entity<|#|>fjord<|#|>location<|#|>{words()}\nentity<|#|>diver<|#|>person<|#|>{words()}\n"
            f"relation<|#|>diver<|#|>fjord<|#|>likes<|#|>{words()}\n<|COMPLETE|>"
        )
    return None


def own_tool(body: dict[str, Any]) -> dict[str, Any] | None:
    """For the Claude Agent SDK: a call of the program's own tool, then text."""
    found = [tool["name"] for tool in body.get("tools", ()) if tool["name"].endswith("depth")]
    asked = "tool_result" not in str(body["messages"][-1]["content"])
    return {found[0]: {"place": words()}} if found and asked else None


ROWS: tuple[Row, ...] = (
    Row("openai_endpoints", "every endpoint of the synchronous client", "providers", ("openai",)),
    Row("openai_async", "chats, streams and responses side by side", "providers", ("openai",)),
    Row("openai_module", "the client of the module itself", "providers", ("openai",)),
    Row("openai_azure", "`AzureOpenAI`", "providers", ("openai",)),
    Row("openai_realtime", "a Realtime session", "providers", ("openai", "websockets")),
    Row(
        "openai_background",
        "responses in the background, polled until they are done",
        "providers",
        ("openai",),
        server="background_server.py",
    ),
    Row("anthropic_messages", "messages, streams, tools, batches, token counts", "providers", ("anthropic",)),
    Row("anthropic_tool_runner", "the tool runner, plain, streamed, asynchronous", "providers", ("anthropic",)),
    Row("anthropic_bedrock", "`AnthropicBedrock`, asked and streamed", "providers", ("anthropic", "boto3")),
    Row("anthropic_vertex", "`AnthropicVertex` with a token", "providers", ("anthropic", "google-auth")),
    Row("google_genai_sync", "texts, streams, tools that the SDK calls, a chat", "providers", ("google-genai",)),
    Row("google_genai_async", "side by side, and streamed", "providers", ("google-genai",)),
    Row("boto3_bedrock", "Converse, Invoke and their streams", "providers", ("boto3", "botocore")),
    Row(
        "aioboto3_bedrock",
        "Converse and its stream, side by side",
        "more providers",
        ("aioboto3", "aiobotocore", "aiohttp"),
    ),
    Row("cohere_chat", "chat, stream, embeddings, ranking", "providers", ("cohere",)),
    Row("ollama_chat", "chats, a stream, a tool, embeddings", "providers", ("ollama",)),
    Row("voyageai_embed", "embeddings by `requests` and `aiohttp`", "more providers", ("voyageai",)),
    Row("mistral_chat", "chat, stream, completion, embeddings", "providers", ("mistralai",)),
    Row("groq_chat", "chat, stream, a tool", "providers", ("groq",)),
    Row("huggingface_inference", "the inference clients", "more providers", ("huggingface_hub",)),
    Row(
        "langchain_agent",
        "an agent with a tool, batches, streams, structured output",
        "langchain",
        ("langchain", "langchain-openai", "langgraph"),
    ),
    Row(
        "langgraph_sqlite",
        "`SqliteSaver` on a lasting file, an interrupt",
        "langchain",
        ("langgraph", "langgraph-checkpoint-sqlite"),
    ),
    Row("langgraph_memory", "branches side by side", "langchain", ("langgraph",)),
    Row(
        "langgraph_tools",
        "a `ToolNode`: tools in threads that share a log under a lock",
        "langchain",
        ("langgraph", "langchain-openai", "httpx"),
        says=both,
    ),
    Row(
        "langgraph_retries",
        "nodes sent to and tried again, tasks, an interrupt, a thread that is gone back to",
        "langchain",
        ("langgraph", "langchain-openai"),
    ),
    Row(
        "langchain_mcp",
        "an agent with the tools of two MCP servers, by stdio and over HTTP",
        "langchain-mcp",
        ("langchain-mcp-adapters", "langchain", "mcp"),
        server="mcp_http_server.py",
        files=("depths_server.py",),
    ),
    Row(
        "llama_index_agent",
        "a `FunctionAgent` with a memory",
        "llama-index",
        ("llama-index-core", "llama-index-llms-openai"),
    ),
    Row(
        "llama_index_workflow",
        "a workflow whose step has four workers, a team of agents",
        "llama-index",
        ("llama-index-core", "llama-index-workflows", "llama-index-llms-openai"),
    ),
    Row("crewai_crew", "a crew of two, default settings", "crewai", ("crewai",), says=final),
    Row("crewai_flow", "a flow: steps side by side, a router", "crewai", ("crewai",)),
    Row("openai_agents_handoff", "a tool, a guardrail, a session, streamed", "openai-agents", ("openai-agents",)),
    Row(
        "openai_agents_mcp",
        "the tools of an MCP server by stdio, an agent as a tool",
        "openai-agents",
        ("openai-agents", "mcp"),
        files=("depths_server.py",),
    ),
    Row("instructor_extract", "answers of a type, asked for again, in parts", "instructor", ("instructor",), says=deep),
    Row("strands_agent", "an agent with a session in files, streamed", "strands", ("strands-agents",)),
    Row("agno_team", "an agent with a memory, a team", "agno", ("agno",)),
    Row("google_adk_agent", "agents one after another, a session in memory", "google-adk", ("google-adk",)),
    Row(
        "google_adk_shapes",
        "agents side by side, in a loop, one after another",
        "google-adk-litellm",
        ("google-adk", "litellm"),
    ),
    Row("dspy_program", "predictions, the default cache", "dspy", ("dspy",), says=fields),
    Row("haystack_pipeline", "a pipeline and an agent, default settings", "haystack", ("haystack-ai",)),
    Row("autogen_team", "a team of two with a tool", "autogen", ("autogen-agentchat", "autogen-ext")),
    Row("semantic_kernel_agent", "an agent with a plugin", "semantic-kernel", ("semantic-kernel",)),
    Row("semantic_kernel_process", "a process of two steps", "semantic-kernel", ("semantic-kernel",)),
    Row("smolagents_requests", "a `CodeAgent` whose tool uses `requests`", "smolagents", ("smolagents",), says=code),
    Row(
        "smolagents_team",
        "a manager, and an agent whose tools run in threads",
        "smolagents",
        ("smolagents",),
        says=team,
    ),
    Row("litellm_ids", "two providers, streams, a router; its own ids", "litellm", ("litellm",)),
    Row(
        "pydantic_ai_logfire",
        "an agent with a tool, watched by Logfire",
        "pydantic-ai",
        ("pydantic-ai-slim", "logfire"),
        variables={"LOGFIRE_TOKEN": "pylf_v1_eu_0123456789", "LOGFIRE_BASE_URL": "{collector}"},
    ),
    Row(
        "pydantic_ai_mcp",
        "the tools of an MCP server by stdio, agents side by side",
        "pydantic-ai",
        ("pydantic-ai-slim", "mcp"),
        files=("depths_server.py",),
    ),
    Row(
        "pydantic_graph_evals",
        "a graph that branches and joins, an evaluation of a dataset",
        "pydantic-graph",
        ("pydantic-graph", "pydantic-evals", "pydantic-ai-slim"),
    ),
    Row("magentic_prompts", "prompts as functions, streamed, with a tool", "prompts", ("magentic", "openai")),
    Row("mirascope_calls", "calls with a tool, streamed, side by side", "prompts", ("mirascope", "openai")),
    Row("outlines_typed", "answers of a type, streamed, side by side", "prompts", ("outlines", "openai")),
    Row("guidance_program", "a program of two questions", "prompts", ("guidance", "openai")),
    Row("pocketflow_flow", "a flow whose node asks side by side", "prompts", ("pocketflow", "openai")),
    Row(
        "deep_agent",
        "an agent with files, a plan and another agent below it",
        "deep-agents",
        ("deepagents", "langgraph"),
    ),
    Row(
        "langgraph_teams",
        "a supervisor with two agents, a swarm of two",
        "deep-agents",
        ("langgraph-supervisor", "langgraph-swarm", "langgraph"),
    ),
    Row("ag2_chat", "an agent with a tool, others streamed side by side", "ag2", ("ag2", "openai")),
    Row("agentscope_agents", "agents side by side, streamed", "agentscope", ("agentscope", "openai")),
    Row(
        "pipecat_bot",
        "a pipeline of processors side by side, each with its queue, a streamed model",
        "pipecat",
        ("pipecat-ai", "openai"),
    ),
    Row("a2a_agents", "an agent by A2A in the process, its tasks streamed", "a2a", ("a2a-sdk", "openai")),
    Row("beeai_workflow", "a workflow that repeats a step, streamed", "beeai", ("beeai-framework", "litellm")),
    Row(
        "ragas_experiment",
        "an experiment judged by a model, its dataset in files",
        "ragas",
        ("ragas", "instructor", "openai"),
        says=verdict,
    ),
    Row("swarms_workflows", "agents one after another, side by side, with a tool", "swarms", ("swarms", "litellm")),
    Row("flask_service", "an application asked in the process, streamed", "web", ("flask", "openai")),
    Row("django_site", "a site asked in the process, plain and asynchronously", "django", ("django", "openai")),
    Row("rq_jobs", "jobs that depend on others, one tried again", "web", ("rq", "fakeredis", "openai")),
    Row(
        "lightrag_graph",
        "texts put into a graph in files, asked in three modes",
        "lightrag",
        ("lightrag-hku", "openai"),
        says=entities,
    ),
    Row("mem0_memory", "memories in a local Qdrant", "memories", ("mem0ai", "qdrant-client")),
    Row("chroma_rag", "a collection on disk, asked", "memories", ("chromadb", "openai")),
    Row("lancedb_rag", "a table on disk, asked, plain and asynchronously", "lancedb", ("lancedb", "openai")),
    Row(
        "duckdb_polars",
        "tables of native libraries, one of them changed on disk",
        "tables",
        ("duckdb", "polars", "faiss-cpu", "openai"),
    ),
    Row(
        "guardrails_guard",
        "a guard that asks again, and a stream",
        "guardrails",
        ("guardrails-ai", "litellm", "openai"),
    ),
    Row(
        "fastmcp_server",
        "a server in the process with its client, another by stdio",
        "fastmcp",
        ("fastmcp", "mcp"),
        asks=False,
    ),
    Row(
        "mcp_stdio",
        "a session with a server that it starts",
        "mcp",
        ("mcp",),
        files=("depths_server.py",),
        asks=False,
    ),
    Row("mcp_http", "a session over streamable HTTP", "mcp", ("mcp",), server="mcp_http_server.py"),
    Row(
        "mini_swe_agent",
        "a coding agent: a shell for each command",
        "mini-swe-agent",
        ("mini-swe-agent", "litellm"),
        says=commands,
    ),
    Row(
        "aider_edit",
        "a coding agent by its command line: edits a file, commits it",
        "aider",
        ("aider-chat", "litellm"),
        command=(
            "-m",
            "aider",
            "--yes-always",
            "--model",
            "openai/gpt-4o",
            "--message",
            "Measure it",
            "aider_edit.txt",
        ),
        says=edit,
    ),
    Row(
        "claude_agent",
        "the Claude Agent SDK with its command line, a tool of the program's own",
        "claude-agent",
        ("claude-agent-sdk",),
        says=own_tool,
    ),
    Row(
        "gitpython_repo",
        "a repository: commits, and blobs from `git cat-file` that stays",
        "tools",
        ("gitpython", "openai"),
    ),
    Row(
        "docker_containers",
        "a container by its daemon's Unix socket, its log streamed",
        "tools",
        ("docker", "openai"),
        server="docker_server.py",
    ),
    Row(
        "playwright_requests",
        "requests by the driver, a process: plain (greenlets) and asynchronous",
        "playwright",
        ("playwright", "openai"),
    ),
    Row(
        "shell_gpt",
        "the command `sgpt`",
        "shell-gpt",
        ("shell-gpt",),
        command=("sgpt", "--no-cache", "--no-interaction", "How deep is the fjord?"),
        variables={"API_BASE_URL": "{url}/v1"},
    ),
    Row(
        "inspect_eval",
        "an evaluation of three samples, by its command",
        "inspect",
        ("inspect-ai", "openai"),
        command=(
            "inspect",
            "eval",
            "inspect_eval.py",
            "--model",
            "openai/gpt-4o",
            "--display",
            "plain",
        ),
    ),
    Row(
        "deepeval_metrics",
        "three cases judged by a model",
        "deepeval",
        ("deepeval", "openai"),
        variables={"DEEPEVAL_TELEMETRY_OPT_OUT": "YES"},
        says=judged,
    ),
    Row(
        "llm_functions",
        "the command `llm` with a function, its log in a database",
        "llm",
        ("llm",),
        command=("-m", "llm", "-m", "gpt-4o-mini", "--functions", "llm_functions.py", "--td", "How deep is the fjord?"),
    ),
    Row(
        "fastapi_service",
        "a service under concurrent load: each request is a run",
        "services",
        ("fastapi", "uvicorn"),
        entry="fastapi_service:ask",
    ),
    Row(
        "celery_tasks", "a worker with its pool: each task is a run", "services", ("celery",), entry="celery_tasks:ask"
    ),
    Row(
        "huey_tasks",
        "a consumer with processes: each task is a run",
        "services",
        ("huey",),
        entry="huey_tasks:answered",
    ),
    Row("dramatiq_worker", "a worker of threads, a message tried again", "workers", ("dramatiq", "openai")),
    Row("taskiq_tasks", "tasks of a loop and of threads", "workers", ("taskiq", "openai")),
    Row("burr_app", "an application of two actions, with its tracker", "workers", ("burr", "openai")),
    Row("dbos_workflow", "workflows that start others, a queue, SQLite", "dbos", ("dbos", "openai")),
    Row(
        "prefect_flow",
        "a flow with the server that it starts, tasks in threads, one tried again",
        "prefect",
        ("prefect", "openai"),
        variables={"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"},
    ),
    Row("streamlit_chat", "a chat page, driven by `AppTest`", "streamlit", ("streamlit", "openai")),
    Row("gradio_app", "an application served in the process, and its client", "gradio", ("gradio", "openai")),
    Row("apscheduler_jobs", "jobs of a loop and of threads", "everyday", ("apscheduler", "httpx")),
    Row(
        "tenacity_fanout",
        "calls in a pool of threads and on a loop, tried again, with caches",
        "more everyday",
        ("tenacity", "aiocache", "cachetools", "httpx"),
    ),
    Row(
        "joblib_memory",
        "answers kept on disk, asked for in threads",
        "more everyday",
        ("joblib", "diskcache", "openai"),
    ),
    Row(
        "stripe_payments",
        "payments, plain and side by side",
        "business",
        ("stripe", "httpx"),
        server="business_server.py",
    ),
    Row(
        "slack_bot",
        "an event answered in a thread with a model, messages side by side",
        "business",
        ("slack-sdk", "slack-bolt", "aiohttp"),
        server="business_server.py",
    ),
    Row(
        "github_issues",
        "issues opened in threads, their titles by a model",
        "business",
        ("pygithub", "openai"),
        server="business_server.py",
    ),
    Row(
        "boto3_storage",
        "objects in parts, a queue, a table: threads of the SDK and of the program",
        "storage",
        ("boto3", "moto"),
        server="boto3_storage_server.py",
    ),
    Row("camel_agents", "an agent with a tool and a memory, others side by side", "camel", ("camel-ai", "openai")),
    Row("langroid_tasks", "a task with another below it, a tool in a message", "langroid", ("langroid", "openai")),
    Row(
        "openhands_agent",
        "a coding agent: a conversation, and its shell, which stays",
        "openhands",
        ("openhands-sdk", "litellm"),
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Row(
        "telegram_bot",
        "a bot that polls for messages and answers with a model",
        "more everyday",
        ("python-telegram-bot", "openai"),
        server="telegram_server.py",
    ),
    Row("sqlalchemy_chats", "conversations in a database", "everyday", ("sqlalchemy", "aiosqlite", "httpx")),
    Row("rich_prompts", "prompts, a progress bar, a table", "everyday", ("rich", "typer"), input="Ada\n2\ny\n"),
    Row("fastapi_client", "an application called in the process", "everyday", ("fastapi", "starlette", "httpx")),
    Row(
        "jupyter_notebook",
        "a cell recorded in one kernel, replayed in another",
        "jupyter",
        ("nbclient", "ipykernel"),
        course=notebooks,
    ),
    Row(
        "langsmith_traced",
        "LangSmith on",
        "telemetry",
        ("langsmith", "openai"),
        variables={"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": "{collector}", "LANGSMITH_API_KEY": "lsv2_stub"},
    ),
    Row(
        "langfuse_observed",
        "Langfuse on",
        "telemetry",
        ("langfuse", "openai"),
        variables={
            "LANGFUSE_HOST": "{collector}",
            "LANGFUSE_BASE_URL": "{collector}",
            "LANGFUSE_PUBLIC_KEY": "pk-stub",
            "LANGFUSE_SECRET_KEY": "sk-stub",
        },
    ),
    Row(
        "langfuse_prompts",
        "prompts kept by Langfuse, asked for again when they are old",
        "telemetry",
        ("langfuse", "openai"),
        server="langfuse_server.py",
    ),
    Row("mlflow_traced", "MLflow with a local store, calls traced", "mlflow", ("mlflow", "openai")),
    Row(
        "wandb_offline",
        "Weights & Biases offline: its service is a process behind a socket",
        "wandb",
        ("wandb", "openai"),
        variables={"WANDB_SILENT": "true"},
    ),
    Row(
        "otlp_spans",
        "OpenTelemetry over HTTP",
        "telemetry",
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
        variables={"OTEL_EXPORTER_OTLP_ENDPOINT": "{collector}"},
    ),
    Row(
        "otlp_grpc",
        "OpenTelemetry over gRPC, its collector gone",
        "telemetry",
        ("opentelemetry-exporter-otlp-proto-grpc", "grpcio"),
    ),
    Row(
        "sentry_watched", "Sentry on", "telemetry", ("sentry-sdk", "openai"), variables={"COLLECTOR_URL": "{collector}"}
    ),
)
