"""The real `openai` client against the service: lists, completes, converses, streams, and is told what is wrong."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="not-needed", max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

asked = dict(model=model, prompt="Alice was beginning to get very tired of", max_tokens=16, temperature=0, seed=1)
whole = client.completions.create(**asked, logprobs=2)
assert whole.usage.completion_tokens == 16 and len(whole.choices[0].logprobs.tokens) == 16
pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
assert pieces[-1].usage == whole.usage

talk = dict(model=model, messages=[{"role": "user", "content": "The Queen said to Alice:"}], max_tokens=12, seed=5, n=2)
answers = client.chat.completions.create(**talk, logprobs=True, top_logprobs=3)
assert len(answers.choices[0].logprobs.content[0].top_logprobs) == 3
said = ["", ""]
for piece in client.chat.completions.create(**talk, stream=True):
    for choice in piece.choices:
        said[choice.index] += choice.delta.content or ""
assert said == [c.message.content for c in answers.choices], (said, answers)

try:
    client.completions.create(model="nobody", prompt="x")
    raise AssertionError("a model that is not there answered")
except openai.NotFoundError as error:
    assert error.param == "model", error
try:
    client.completions.create(model=model, prompt="x", n=1000)
    raise AssertionError("a thousand answers were given")
except openai.BadRequestError as error:
    assert error.param == "n", error
print(f"openai {openai.__version__}: {whole.choices[0].text!r}")
