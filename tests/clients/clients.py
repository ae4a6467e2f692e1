"""Two turns with a tool through each client that is installed, against the server at BASE (its address without a path).

usage: clients.py BASE MODEL NAME...
Prints a line for each NAME: the client, its version, and what it did.
"""

import json, os, sys
from importlib.metadata import version

BASE, MODEL, NAMES = sys.argv[1], sys.argv[2], sys.argv[3:]
CITY = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": CITY}}
ASK = "How is the weather?"


def check(city):
    assert city in ("Bern", "Rome"), city


def openai():
    from openai import OpenAI

    client = OpenAI(base_url=BASE + "/v1", api_key="none")
    messages = [{"role": "user", "content": ASK}]
    one = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    call = one.choices[0].message.tool_calls[0]
    check(json.loads(call.function.arguments)["city"])
    messages += [one.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "wet"}]
    parts = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=20, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text
    flat = {**TOOL["function"], "type": "function", "strict": True}
    one = client.responses.create(model=MODEL, input=ASK, tools=[flat], tool_choice="required", parallel_tool_calls=False, store=False)
    call = [item for item in one.output if item.type == "function_call"][0]
    check(json.loads(call.arguments)["city"])
    again = [{"role": "user", "content": ASK}, *one.output, {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}]
    two = client.responses.create(model=MODEL, input=again, tools=[flat], max_output_tokens=20, store=False)
    assert two.output_text
    assert len(client.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
    assert client.models.list().data[0].id
    return "two turns with a tool in Chat Completions (the second streamed) and in Responses; embeddings, models"


def anthropic():
    from anthropic import Anthropic

    client = Anthropic(base_url=BASE, api_key="none")
    tool = {"name": "weather", "description": "Tells the weather.", "input_schema": CITY}
    messages = [{"role": "user", "content": ASK}]
    one = client.messages.create(model=MODEL, max_tokens=60, messages=messages, tools=[tool], tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True})
    use = [block for block in one.content if block.type == "tool_use"][0]
    check(use.input["city"])
    messages += [{"role": "assistant", "content": one.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "wet"}]}]
    with client.messages.stream(model=MODEL, max_tokens=20, messages=messages, tools=[tool]) as stream:
        assert stream.get_final_text()
    assert client.messages.count_tokens(model=MODEL, messages=messages[:1]).input_tokens > 0
    assert client.models.list().data[0].id
    return "two turns with a tool, the second streamed; counts of tokens, models"


def ollama():
    from ollama import Client

    client = Client(host=BASE)
    messages = [{"role": "user", "content": ASK}]
    one = client.chat(model=MODEL, messages=messages, tools=[TOOL], options={"num_predict": 30})
    messages += [one.message, {"role": "user", "content": "And?"}]
    text = "".join(part.message.content for part in client.chat(model=MODEL, messages=messages, stream=True, options={"num_predict": 20}))
    assert text
    calls = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bern"}}}]}, {"role": "tool", "tool_name": "weather", "content": "wet"}]
    assert client.chat(model=MODEL, messages=calls, tools=[TOOL], options={"num_predict": 20}).message.content
    formed = client.chat(model=MODEL, messages=messages[:1], format=CITY)
    check(json.loads(formed.message.content)["city"])
    assert client.generate(model=MODEL, prompt="Once", options={"num_predict": 8}).response
    assert len(client.embed(model=MODEL, input=["a", "b"]).embeddings) == 2
    assert client.list().models[0].model and client.show(MODEL).modelinfo and client.ps() is not None
    return "two turns with a tool's result, streamed, a format by schema, generate, embed, list, show, ps"


def langchain_openai():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    done = []
    for responses in (False, True):
        model = ChatOpenAI(base_url=BASE + "/v1", api_key="none", model=MODEL, max_tokens=60, use_responses_api=responses, store=False if responses else None)
        one = model.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False).invoke([HumanMessage(ASK)])
        call = one.tool_calls[0]
        check(call["args"]["city"])
        two = model.bind_tools([TOOL]).invoke([HumanMessage(ASK), one, ToolMessage("wet", tool_call_id=call["id"])])
        assert two.text if not callable(two.text) else two.text()
        done.append("Responses" if responses else "Chat Completions")
    formed = ChatOpenAI(base_url=BASE + "/v1", api_key="none", model=MODEL).with_structured_output({"title": "city", **CITY}, method="json_schema").invoke(ASK)
    check(formed["city"])
    assert len(OpenAIEmbeddings(base_url=BASE + "/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False).embed_query("a")) > 8
    return "two turns with a tool in " + " and ".join(done) + "; structured output, embeddings"


def langchain_anthropic():
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage

    model = ChatAnthropic(base_url=BASE, api_key="none", model=MODEL, max_tokens=60)
    one = model.bind_tools([TOOL], tool_choice="weather", parallel_tool_calls=False).invoke([HumanMessage(ASK)])
    check(one.tool_calls[0]["args"]["city"])
    two = model.bind_tools([TOOL]).invoke([HumanMessage(ASK), one, ToolMessage("wet", tool_call_id=one.tool_calls[0]["id"])])
    assert two.content
    return "two turns with a tool"


def langchain_ollama():
    from langchain_core.messages import HumanMessage, ToolMessage, AIMessage
    from langchain_ollama import ChatOllama, OllamaEmbeddings

    model = ChatOllama(base_url=BASE, model=MODEL, num_predict=30)
    one = model.bind_tools([TOOL]).invoke([HumanMessage(ASK)])
    called = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Bern"}, "id": "a"}])
    assert isinstance(one.content, str)
    assert model.bind_tools([TOOL]).invoke([HumanMessage(ASK), called, ToolMessage("wet", tool_call_id="a")]).content
    check(ChatOllama(base_url=BASE, model=MODEL, format=CITY).with_structured_output({"title": "city", **CITY}).invoke(ASK)["city"])
    assert len(OllamaEmbeddings(base_url=BASE, model=MODEL).embed_query("a")) > 8
    return "two turns with a tool's result, structured output, embeddings"


def pydantic_ai():
    from typing import Literal
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class City(BaseModel):
        city: Literal["Bern", "Rome"]

    agent = Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE + "/v1", api_key="none")), output_type=City, retries=5)
    one = agent.run_sync(ASK, model_settings={"max_tokens": 60, "parallel_tool_calls": False})
    check(one.output.city)
    two = agent.run_sync("And now?", message_history=one.all_messages(), model_settings={"max_tokens": 60, "parallel_tool_calls": False})
    check(two.output.city)
    return "two turns, each a call of the tool that an output type is"


def openai_agents():
    from typing import Literal
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    called = []

    @function_tool
    def weather(city: Literal["Bern", "Rome"]) -> str:
        "Tells the weather."
        called.append(city)
        return "wet"

    client = AsyncOpenAI(base_url=BASE + "/v1", api_key="none")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        settings = ModelSettings(tool_choice="required", max_tokens=60, parallel_tool_calls=False, store=False)
        agent = Agent(name="a", model=kind(model=MODEL, openai_client=client), tools=[weather], model_settings=settings)
        assert Runner.run_sync(agent, ASK, max_turns=8).final_output is not None
    assert len(called) >= 2
    return "an agent that calls a tool and answers, in Chat Completions and in Responses"


def litellm():
    import litellm

    done = []
    for name, base in (("openai/" + MODEL, BASE + "/v1"), ("anthropic/" + MODEL, BASE)):
        messages = [{"role": "user", "content": ASK}]
        one = litellm.completion(model=name, api_base=base, api_key="none", messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
        call = one.choices[0].message.tool_calls[0]
        check(json.loads(call.function.arguments)["city"])
        messages += [one.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "wet"}]
        two = litellm.completion(model=name, api_base=base, api_key="none", messages=messages, tools=[TOOL], max_tokens=20)
        assert two.choices[0].message.content is not None
        done.append(name.split("/")[0])
    return "two turns with a tool as " + " and ".join(done)


def instructor():
    import instructor
    from openai import OpenAI
    from typing import Literal
    from pydantic import BaseModel

    class City(BaseModel):
        city: Literal["Bern", "Rome"]

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=BASE + "/v1", api_key="none"), mode=mode)
        messages = [{"role": "user", "content": ASK}]
        for _ in range(2):
            city = client.chat.completions.create(model=MODEL, messages=messages, response_model=City, max_tokens=60)
            check(city.city)
            messages += [{"role": "assistant", "content": city.model_dump_json()}, {"role": "user", "content": "And now?"}]
    return "two turns of a response model, by a tool and by a schema"


def llm():
    import subprocess, tempfile, pathlib

    with tempfile.TemporaryDirectory() as home:
        pathlib.Path(home, "extra-openai-models.yaml").write_text(f"- model_id: local\n  model_name: {MODEL}\n  api_base: {BASE}/v1\n  supports_tools: true\n")
        pathlib.Path(home, "keys.json").write_text('{"openai": "none"}')
        env = {**os.environ, "LLM_USER_PATH": home}
        tool = 'def weather(city: str) -> str:\n    "Tells the weather."\n    return "wet"\n'
        for more in (["--functions", tool, ASK], ["-c", "And now?"]):
            run = subprocess.run([sys.executable, "-m", "llm", "-m", "local", "-o", "max_tokens", "20", *more], env=env, capture_output=True, text=True)
            assert run.returncode == 0 and run.stdout.strip(), run.stderr
    return "two turns, a tool offered"


PACKAGE = {"pydantic_ai": "pydantic-ai-slim", "openai_agents": "openai-agents"}
for name in NAMES:
    package = PACKAGE.get(name, name.replace("_", "-"))
    try:
        did = globals()[name]()
    except Exception as error:
        did = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
    print(f"{package} | {version(package)} | {did}", flush=True)
