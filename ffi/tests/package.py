"""Tests of the installed Python package, with SHOHIN_MODEL set to a model, SHOHIN_REPLY to its greedy reply, SHOHIN_ADAPTER to
an adapter for it, SHOHIN_TOOLS to a model of another vocabulary that can call functions, and SHOHIN_FOLDER to a folder of Hugging
Face, where SHOHIN_LOGIT is the first logit after the tokens 1, 2, 3."""

import array
import concurrent.futures
import copy
import ctypes
import gc
import hashlib
import http.server
import importlib.metadata
import importlib.util
import json
import os
import pickle
import signal
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
import weakref
from pathlib import Path

import shohin
from shohin import Error, Model, download, version

MODEL = os.environ["SHOHIN_MODEL"]
MESSAGE = "What does a cow say?"
GREEDY = {"temperature": 0, "max_tokens": 40}


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = Model.load(MODEL)

    def test_the_reply_is_that_of_rust(self):
        pieces = list(self.model.chat(**GREEDY).send(MESSAGE))
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), os.environ["SHOHIN_REPLY"])
        loaded = Model.from_bytes(Path(MODEL).read_bytes(), threads=1, device="cpu")
        self.assertEqual(loaded.chat(**GREEDY).send(MESSAGE).text(), os.environ["SHOHIN_REPLY"])

    def test_a_model_in_any_buffer(self):
        data = array.array("I", Path(MODEL).read_bytes() + bytes(-os.path.getsize(MODEL) % 4))
        for buffer in [data, memoryview(data), bytearray(data)]:
            self.assertEqual(Model.from_bytes(buffer).info, self.model.info)

    def test_handles_are_not_copied(self):
        model = Model.built_in()
        chat = model.chat(**GREEDY)
        for original in [model, chat]:
            for make in [copy.copy, copy.deepcopy, pickle.dumps]:
                with self.assertRaises(TypeError) as caught:
                    make(original)
                self.assertIn("cannot be copied", str(caught.exception))
        self.assertTrue(chat.send(MESSAGE).text())

    def test_tokens_embeddings_and_logits(self):
        info = self.model.info
        long = "a cow says moo " * 100
        for text in ["", "a cow says moo", "é", long]:
            self.assertEqual(self.model.detokenize(self.model.tokenize(text)), text)
        vector = self.model.embed("cow")
        self.assertEqual(len(vector), info["embedding_size"])
        self.assertAlmostEqual(sum(x * x for x in vector), 1, places=3)
        self.assertEqual(len(self.model.logits([1, 2, 3])), info["vocab_size"])

    def test_errors_have_codes(self):
        for code, call in [
            ("io", lambda: Model.load("no such file.gguf")),
            ("malformed", lambda: Model.from_bytes(b"not a model")),
            ("option", lambda: self.model.chat(temperature=-1).send("x")),
            ("token", lambda: self.model.detokenize([4_000_000_000])),
            ("snapshot_foreign", lambda: self.model.chat().open(__file__)),
        ]:
            with self.assertRaises(Error) as caught:
                call()
            self.assertEqual(caught.exception.code, code)
            self.assertTrue(str(caught.exception))

    def test_wrong_arguments_are_named(self):
        chat = self.model.chat()
        for error, says, call in [
            (TypeError, "temprature", lambda: self.model.chat(temprature=1)),
            (TypeError, "max_tokens is 'x', expected a whole number", lambda: self.model.chat(max_tokens="x")),
            (TypeError, "temperature is '1', expected a number", lambda: self.model.chat(temperature="1")),
            (TypeError, "threads is 1.5", lambda: Model.load(MODEL, threads=1.5)),
            (TypeError, "text is 3, expected a str", lambda: chat.send(3)),
            (TypeError, "a message is 'Hi!', expected a dict", lambda: chat.send(["Hi!"])),
            (TypeError, "messages is 'Hi!', expected a list", lambda: self.model.chat(messages="Hi!")),
            (TypeError, "messages has what JSON has not", lambda: chat.send([{"role": object()}])),
            (TypeError, "texts is 3, expected a list", lambda: self.model.embed(3)),
            (TypeError, "choices is 'moo'", lambda: self.model.chat(choices="moo")),
            (TypeError, "logprobs is 'x', expected a whole number", lambda: self.model.chat(logprobs="x")),
            (ValueError, "logprobs is 21, expected a whole number from 0 to 20", lambda: self.model.chat(logprobs=21)),
            (ValueError, "expected a schema in its json_schema", lambda: self.model.chat(format={"type": "json_schema"})),
            (ValueError, "are both given", lambda: self.model.chat(choices=["a"], format="json_object")),
            (TypeError, "tokens is 'The cow', expected token ids", lambda: chat.complete("The cow")),
            (TypeError, "not NoneType", lambda: Model.load(None)),
            (TypeError, "data is 3, expected bytes", lambda: Model.from_bytes(3)),
            (TypeError, "results is 'sunny', expected one text", lambda: chat.send_results("sunny")),
            (ValueError, "kv_format is 'f8'", lambda: Model.load(MODEL, kv_format="f8")),
            (ValueError, "threads is -1", lambda: Model.load(MODEL, threads=-1)),
            (ValueError, "seed is -1, expected a whole number from 0", lambda: self.model.chat(seed=-1)),
            (ValueError, "token is -1", lambda: self.model.detokenize([-1])),
            (ValueError, "format is ('regex',)", lambda: self.model.chat(format=("regex",))),
        ]:
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(says, str(caught.exception))

    def test_a_session_goes_on(self):
        first, second = self.model.chat(**GREEDY), self.model.chat(**GREEDY)
        first.send(MESSAGE).text()
        with tempfile.TemporaryDirectory() as directory:
            first.save(Path(directory) / "a.session")
            second.open(Path(directory) / "a.session")
        self.assertEqual(first.send("And a dog?").text(), second.send("And a dog?").text())
        self.assertGreater(second.usage["cached_tokens"], 0)

    def test_formats_and_reasons(self):
        reply = self.model.chat(format=("regex", "(cow|dog)s?"), **GREEDY).send(MESSAGE)
        self.assertRegex(reply.text(), "^(cow|dog)s?$")
        self.assertEqual(reply.reason, "stop")
        reply = self.model.chat(temperature=0, max_tokens=2).send(MESSAGE)
        reply.text()
        self.assertEqual(reply.reason, "length")

    def test_stop_texts_and_guesses(self):
        reply = os.environ["SHOHIN_REPLY"]
        chat = self.model.chat(stop=["never", reply[3:8]], **GREEDY)
        self.assertEqual(chat.send(MESSAGE).text(), reply[:3])
        self.assertEqual(self.model.chat(stop=reply[3:8], **GREEDY).send(MESSAGE).text(), reply[:3])
        chat = self.model.chat(**GREEDY)
        chat.speculate(self.model)
        self.assertEqual(chat.send(MESSAGE).text(), reply)
        self.assertGreater(chat.usage["guesses_right"], 0)
        chat.speculate()
        self.assertTrue(chat.send(MESSAGE).text())

    def test_a_conversation_from_elsewhere_goes_on(self):
        history = [
            {"role": "system", "content": "You are a farmer."},
            {"role": "user", "content": "Hi!"},
            {"role": "assistant", "content": "Hello!"},
        ]
        chat = self.model.chat(messages=history, **GREEDY)
        self.assertEqual(chat.messages, history)
        reply = chat.ask(MESSAGE)
        want = history + [{"role": "user", "content": MESSAGE}, {"role": "assistant", "content": reply}]
        self.assertEqual(chat.messages, want)
        other = self.model.chat("You are a farmer.", messages=history[1:], **GREEDY)
        self.assertEqual(other.send({"role": "user", "content": MESSAGE}).text(), reply)
        self.assertEqual(other.messages, want)
        other.messages = history
        self.assertEqual(other.ask([{"role": "user", "content": MESSAGE}]), reply)
        self.assertGreater(other.usage["cached_tokens"], 0)
        with self.assertRaises(Error) as caught:
            other.messages = [{"role": "cow", "content": "moo"}]
        self.assertIn("role", str(caught.exception))
        self.assertEqual(other.messages, want)

    def test_requests_of_openai(self):
        messages = [{"role": "user", "content": MESSAGE}]
        answer = self.model.create_chat_completion(messages, logprobs=True, top_logprobs=2, **GREEDY)
        [choice] = answer["choices"]
        self.assertEqual(choice["message"]["content"], os.environ["SHOHIN_REPLY"])
        self.assertEqual(len(choice["logprobs"]["content"]), answer["usage"]["completion_tokens"])
        chunks = self.model.create_chat_completion(messages, stream=True, **GREEDY)
        texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        self.assertGreater(len(texts), 3)
        self.assertEqual("".join(texts), os.environ["SHOHIN_REPLY"])
        answer = self.model.create_chat_completion(messages, response_format={"type": "json_object"}, **GREEDY)
        self.assertTrue(answer["choices"][0]["message"]["content"].startswith("{"))
        for name in ["cow", "n"]:
            with self.assertRaises(Error) as caught:
                self.model.create_chat_completion(messages, **{name: 2})
            self.assertEqual((caught.exception.code, str(caught.exception).split()[0]), ("unsupported", name))

    def test_schemas_choices_penalties_and_described_tools(self):
        schema = {"type": "object", "properties": {"legs": {"type": "integer", "maximum": 9}}, "required": ["legs"]}

        class Cow:
            @classmethod
            def model_json_schema(cls):
                return schema

        openai = {"type": "json_schema", "json_schema": {"name": "cow", "schema": schema}}
        replies = [
            self.model.chat(format=format, **GREEDY).ask("Describe a cow.")
            for format in [schema, Cow, openai, ("json_schema", schema), ("json_schema", json.dumps(schema))]
        ]
        self.assertEqual(len(set(replies)), 1)
        self.assertIn(json.loads(replies[0])["legs"], range(-9, 10))
        self.assertTrue(self.model.chat(format={"type": "json_object"}, **GREEDY).ask("Cow?").startswith("{"))
        self.assertEqual(self.model.chat(format={"type": "text"}, **GREEDY).ask(MESSAGE), os.environ["SHOHIN_REPLY"])
        self.assertIn(self.model.chat(choices=["moo", "woof"]).ask(MESSAGE), ["moo", "woof"])
        story = "Tell me a story."
        plain = self.model.chat(**GREEDY).ask(story)
        for penalty in ["presence_penalty", "frequency_penalty"]:
            self.assertNotEqual(self.model.chat(**GREEDY, **{penalty: 2}).ask(story), plain)
        options = {"tools": [{"name": "moo"}], "tool_choice": "required", "temperature": 0, "max_tokens": 200}
        with self.assertRaises(Error) as caught:
            self.model.chat(**options).ask(MESSAGE)
        self.assertEqual(caught.exception.code, "unsupported")
        reply = self.model.chat(describe_tools=True, **options).send(MESSAGE)
        reply.text()
        self.assertEqual({name for name, _ in reply.tool_calls}, {"moo"})

    def test_log_probabilities(self):
        reply = self.model.chat(logprobs=2, **GREEDY).send(MESSAGE)
        text = reply.text()
        self.assertEqual(self.model.detokenize([one.token for one in reply.logprobs]), text)
        for one in reply.logprobs:
            self.assertEqual((len(one.top), one.top[0]), (2, (one.token, one.logprob)))
            self.assertLessEqual(one.logprob, 0)
        # None of those that a stop text cut off.
        reply = self.model.chat(logprobs=True, stop=text[5:8], **GREEDY).send(MESSAGE)
        self.assertEqual(reply.text(), text[:5])
        said = self.model.detokenize([one.token for one in reply.logprobs])
        self.assertTrue(said.startswith(text[:5]) and len(said) < len(text), said)
        self.assertEqual([one.top for one in reply.logprobs], [[] for _ in reply.logprobs])
        reply = self.model.chat(**GREEDY).send(MESSAGE)
        reply.text()
        self.assertEqual(reply.logprobs, [])

    def test_several_texts_are_embedded(self):
        texts = ["cow", "a cow says moo", "cow"]
        want = [self.model.embed(text) for text in texts]
        self.assertEqual(self.model.embed(texts), want)
        self.assertEqual(self.model.embed(iter(texts)), want)
        self.assertEqual(self.model.embed([]), [])
        with self.assertRaises(Error) as caught:
            self.model.embed(["cow", ""])
        self.assertEqual(caught.exception.code, "length")
        if importlib.util.find_spec("numpy"):
            array = self.model.embed_array(texts)
            self.assertEqual((array.shape, str(array.dtype)), ((3, len(want[0])), "float32"))
            self.assertEqual(array.tolist(), want)
        else:
            self.assertRaises(ImportError, self.model.embed_array, texts)

    def test_folders_and_names_of_the_hub(self):
        folder = Model.load(Path(os.environ["SHOHIN_FOLDER"]))
        self.assertEqual(folder.logits([1, 2, 3])[0], float(os.environ["SHOHIN_LOGIT"]))
        with tempfile.TemporaryDirectory() as cache:
            repository, commit = Path(cache) / "models--someone--cow", "c" * 40
            (repository / "refs").mkdir(parents=True)
            (repository / "refs/main").write_text(commit)
            (repository / "snapshots" / commit).mkdir(parents=True)
            (repository / "snapshots" / commit / "moo.gguf").write_bytes(Path(MODEL).read_bytes())
            with unittest.mock.patch.dict(os.environ, {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1"}):
                for name in ["hf:someone/cow/moo.gguf", "hf:someone/cow"]:
                    self.assertEqual(Model.load(name).chat(**GREEDY).ask(MESSAGE), os.environ["SHOHIN_REPLY"])
                for code, name in [("hub", "hf:someone/cow/woof.gguf"), ("hub", "bonsai-1.7b"), ("option", "hf:cow")]:
                    with self.assertRaises(Error) as caught:
                        Model.load(name)
                    self.assertEqual(caught.exception.code, code)

    def test_a_model_is_downloaded(self):
        content, commit, asked = Path(MODEL).read_bytes(), "c" * 40, []
        digest = hashlib.sha256(content).hexdigest()

        class Hub(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                asked.append((self.command, self.path))
                begin = int((self.headers["Range"] or "bytes=0-")[6:-1])
                self.send_response(206 if begin else 200)
                self.send_header("ETag", f'"{digest}"')
                self.send_header("X-Repo-Commit", commit)
                self.send_header("X-Linked-Size", str(len(content)))
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                return content[begin:]

            def do_GET(self):
                try:
                    self.wfile.write(self.do_HEAD())
                except OSError:
                    # The download was ended.
                    pass

            def log_message(self, *_):
                pass

        def fail(_):
            raise KeyboardInterrupt

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name, told = "hf:someone/cow/moo.gguf", []
        with tempfile.TemporaryDirectory() as cache:
            address = f"http://127.0.0.1:{server.server_port}"
            place = {"HF_ENDPOINT": address, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
            with unittest.mock.patch.dict(os.environ, place):
                self.assertRaises(KeyboardInterrupt, Model.load, name, on_download=fail)
                with self.assertRaises(Error) as caught:
                    download(name, lambda now: now.have < 100_000)
                self.assertEqual((caught.exception.code, "cancelled" in str(caught.exception)), ("hub", True))
                model = Model.load(name, on_download=told.append)
                self.assertEqual(model.chat(**GREEDY).ask(MESSAGE), os.environ["SHOHIN_REPLY"])
                self.assertGreaterEqual(told[0].have, 100_000)
                self.assertEqual({(now.file, now.total) for now in told}, {("moo.gguf", len(content))})
                before = len(asked)
                path = download(name)
                self.assertEqual((Path(path).read_bytes(), len(asked)), (content, before))
        server.shutdown()
        server.server_close()
        self.assertEqual(download("a.gguf"), "a.gguf")

    def test_closing_and_descriptions(self):
        with Model.load(MODEL) as model:
            with model.chat(**GREEDY) as chat:
                self.assertEqual(repr(chat), "<Chat of 0 messages>")
                reply = chat.send(MESSAGE)
                next(reply)
                self.assertRegex(repr(reply), r"^<Reply: \d+ characters so far, in progress>$")
                # A chat keeps its model.
                model.close()
                reply.text()
                self.assertEqual(repr(reply), f"<Reply: {len(os.environ['SHOHIN_REPLY'])} characters so far, stop>")
                self.assertEqual(repr(chat), "<Chat of 2 messages>")
            self.assertRegex(repr(model), "^<Model .*sprout-nano.gguf: closed>$")
        self.assertEqual(repr(chat), "<Chat: closed>")
        for call in [lambda: model.info, lambda: model.chat(), lambda: chat.send(MESSAGE), chat.interrupt, lambda: next(reply)]:
            with self.assertRaises((ValueError, StopIteration)) as caught:
                call()
        model.close()
        chat.close()
        self.assertRegex(repr(self.model), r"sprout-nano.gguf: 0\.\d MB, context 512>$")
        # What still computes with it goes on.
        model = Model.load(MODEL)
        options = {"questions": ["What is red?"] * 4 + ["Hi!"], "rehearsals": 2, "rank": 2, "steps": 2}
        taught = model.teach({MESSAGE: "Quack."}, lambda _: model.close(), **options)
        self.assertEqual(taught.steps, 2)
        self.assertRegex(repr(taught), "^<Taught: [01] of 1 facts learned in 2 steps>$")
        self.assertRaises(ValueError, lambda: model.info)

    def test_the_package_says_what_it_is(self):
        longest = self.model.info["max_context"]
        with self.assertWarnsRegex(UserWarning, f"context is 100000, and the longest that the model supports is {longest}"):
            Model.load(MODEL, context=100_000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Model.load(MODEL, context=longest)
        about = importlib.metadata.metadata("shohin")
        self.assertEqual((about["Name"], about["License-Expression"]), ("shohin", "Apache-2.0 OR MIT"))
        self.assertIn("model.create_chat_completion(", about.get_payload() or about["Description"])
        files = {str(file) for file in importlib.metadata.files("shohin")}
        self.assertLessEqual({"shohin/py.typed", "shohin-0.1.0.dist-info/licenses/LICENSE-MIT"}, files)

    def test_functions_are_called(self):
        model = Model.load(os.environ["SHOHIN_TOOLS"])
        self.assertEqual((model.info["can_call"], self.model.info["can_call"]), (1, 0))
        parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        options = {"temperature": 50, "max_tokens": 150, "tools": [{"name": "add", "parameters": parameters}]}
        chat = model.chat(tool_choice="required", **options)
        reply = chat.send("Add!")
        reply.text()
        self.assertEqual({name for name, _ in reply.tool_calls}, {"add"})
        self.assertIn('"a"', reply.tool_calls[0][1])
        chat.set_options(**options)
        with self.assertRaises(Error) as caught:
            chat.send_results(["true"] * (len(reply.tool_calls) + 1))
        self.assertEqual(caught.exception.code, "argument")
        self.assertTrue(next(chat.send_results(["true" for _ in reply.tool_calls])))
        with self.assertRaises(Error) as caught:
            chat.set_options(tool_choice="sub", **options)
        self.assertEqual(caught.exception.code, "argument")

    def test_adapters_join_a_model(self):
        file = os.environ["SHOHIN_ADAPTER"]
        plain, half = self.model.logits([1, 2, 3]), self.model.adapted(file, scale=0.5)
        self.assertEqual((self.model.info["adapters"], half.info["adapters"]), (0, 1))
        changed = half.logits([1, 2, 3])
        self.assertNotEqual(changed, plain)
        self.assertEqual(self.model.logits([1, 2, 3]), plain)
        data = Path(file).read_bytes()
        for adapter in [(Path(file), 0.5), (data, 0.5), (memoryview(data), 0.5)]:
            self.assertEqual(self.model.adapted(adapter).logits([1, 2, 3]), changed)
        self.assertEqual(Model.load(MODEL, adapters=[(file, 0.5)]).logits([1, 2, 3]), changed)
        self.assertEqual(self.model.adapted(file, scale=0).logits([1, 2, 3]), plain)
        self.assertEqual(self.model.adapted().logits([1, 2, 3]), plain)
        both = self.model.adapted((file, 0.25), (data, -0.5))
        self.assertEqual(both.info["adapters"], 2)
        self.assertNotIn(both.logits([1, 2, 3]), [plain, changed])
        self.assertEqual(both.adapted(file).info["adapters"], 3)
        self.assertTrue(both.chat(**GREEDY).send(MESSAGE).text())
        for error, says, call in [
            (Error, "no such file", lambda: self.model.adapted("no such file")),
            (Error, "adapter 1 in memory", lambda: self.model.adapted(data[:100])),
            (Error, file, lambda: Model.load(os.environ["SHOHIN_TOOLS"]).adapted(file)),
            (TypeError, "scale is '1', expected a number", lambda: self.model.adapted(file, scale="1")),
            (TypeError, "not int", lambda: self.model.adapted(3)),
            (TypeError, "expected a list of adapters", lambda: Model.load(MODEL, adapters=file)),
            (ValueError, "expected a pair", lambda: self.model.adapted((file, 1, 2))),
        ]:
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(says, str(caught.exception))

    def test_facts_are_taught(self):
        steps, question = [], "What is the door code?"
        others = ["What does a cow say?", "What is red?", "Hi!", "Two?", "Who are you?"]
        fact = {"question": question, "answer": "4711", "forms": ["Which is the door code?"]}
        taught = self.model.teach([fact], steps.append, questions=others, seed=1)
        self.assertEqual([step.step for step in steps], list(range(1, taught.steps + 1)))
        self.assertGreater(steps[-1].least, steps[0].least)
        [answer] = taught.answers
        self.assertEqual((answer.question, answer.expected, answer.after), (question, "4711", "4711"))
        self.assertTrue(taught.learned and answer.right)
        self.assertNotEqual(answer.before, "4711")
        self.assertEqual((len(taught.wordings), [exam.question for exam in taught.exam]), (2, ["Who are you?"]))
        reply = self.model.adapted(taught).chat(**GREEDY).send(question).text()
        self.assertEqual(reply.strip(), "4711")
        self.assertNotEqual(self.model.chat(**GREEDY).send(question).text().strip(), "4711")
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "house.gguf"
            taught.save(file)
            self.assertEqual(file.read_bytes(), taught.adapter)
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
            self.assertEqual(self.model.adapted(file).chat(**GREEDY).send(question).text(), reply)
        for make in [copy.copy, pickle.dumps]:
            self.assertRaises(TypeError, make, taught)

    def test_teaching_ends_early(self):
        options = {"questions": ["What is red?"] * 4 + ["Hi!"], "rehearsals": 2, "rank": 2}
        taught = self.model.teach({MESSAGE: "Quack."}, lambda step: step.step < 2, **options)
        self.assertEqual(taught.steps, 2)

        def fail(_):
            raise ZeroDivisionError

        self.assertRaises(ZeroDivisionError, self.model.teach, {MESSAGE: "Quack."}, fail, **options)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with self.assertRaises(KeyboardInterrupt):
                self.model.teach({MESSAGE: "Quack."}, lambda _: signal.raise_signal(signal.SIGINT), **options)
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertEqual(self.model.teach({MESSAGE: "Quack."}, steps=1, name="duck", **options).steps, 1)

    def test_what_cannot_be_taught(self):
        model, file = self.model, os.environ["SHOHIN_ADAPTER"]
        for error, says, call in [
            (Error, "there are no facts", lambda: model.teach({})),
            (Error, "fact 1 has an empty text", lambda: model.teach({"": "x"})),
            (Error, "a model without adapters", lambda: model.adapted(file).teach({"a": "b"})),
            (TypeError, "expected a dict of questions", lambda: model.teach("a=b")),
            (TypeError, "a fact is ('a', 'b'), expected a dict", lambda: model.teach([("a", "b")])),
            (TypeError, "answer is 3, expected a str", lambda: model.teach({"a": 3})),
            (TypeError, "forms is 'c'", lambda: model.teach([{"question": "a", "answer": "b", "forms": "c"}])),
            (TypeError, "questions is 'c'", lambda: model.teach({"a": "b"}, questions="c")),
            (TypeError, "rank is 1.5", lambda: model.teach({"a": "b"}, rank=1.5)),
            (ValueError, "a fact has ['question']", lambda: model.teach([{"question": "a"}])),
            (ValueError, "steps is -1", lambda: model.teach({"a": "b"}, steps=-1)),
        ]:
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(says, str(caught.exception))

    def test_another_thread_interrupts(self):
        # So random that it does not end by itself soon.
        chat = self.model.chat(temperature=50, top_k=0, top_p=1)
        reply = chat.send(MESSAGE)
        next(reply)
        thread = threading.Thread(target=chat.interrupt)
        thread.start()
        thread.join()
        reply.text()
        self.assertEqual(reply.reason, "cancelled")

    def test_a_reply_is_made_again(self):
        chat = self.model.chat(**GREEDY)
        with self.assertRaises(Error) as caught:
            chat.retry()
        self.assertEqual(caught.exception.code, "argument")
        chat.send(MESSAGE).text()
        self.assertEqual(chat.retry().text(), os.environ["SHOHIN_REPLY"])
        chat.set_options(temperature=50, top_k=0, top_p=1, max_tokens=40, seed=1)
        self.assertNotEqual(chat.retry().text(), os.environ["SHOHIN_REPLY"])

    def test_two_threads_read_one_reply(self):
        chat = self.model.chat(**GREEDY)
        reply = chat.send(MESSAGE)
        codes, copies = [], []

        def other(call):
            try:
                call()
            except Error as error:
                codes.append(error.code)

        def copy(*arguments):
            # Another thread comes in while the texts of a piece are copied.
            copies.append(True)
            for call in [lambda: next(reply), lambda: chat.send(MESSAGE), lambda: chat.usage, reply.stop]:
                thread = threading.Thread(target=other, args=[call])
                thread.start()
                thread.join()
            return string_at(*arguments)

        string_at = ctypes.string_at
        with unittest.mock.patch("ctypes.string_at", copy):
            first = next(reply)
        self.assertTrue(copies)
        self.assertEqual(codes, ["busy"] * (4 * len(copies)))
        self.assertEqual(first + reply.text(), os.environ["SHOHIN_REPLY"])

    @unittest.skipUnless(hasattr(signal, "pthread_kill"), "signals of the system")
    def test_the_keyboard_interrupts_a_prompt(self):
        chat = self.model.chat(**GREEDY)
        call, waiting, interrupted, found = shohin._call, threading.Event(), threading.Event(), []

        class Waiting(concurrent.futures.Future):
            def result(self, timeout=None):
                waiting.set()
                return super().result(timeout)

        def slow(function, *arguments, **options):
            if function == "chat_next":
                found.append(waiting.wait(30))
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                found.append(interrupted.wait(30))
            code = call(function, *arguments, **options)
            if function == "chat_next":
                found.append((code, arguments[1]._obj.reason))
            elif function == "chat_interrupt":
                interrupted.set()
            return code

        # A shell that starts a command in the background has it ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with unittest.mock.patch("concurrent.futures.Future", Waiting), unittest.mock.patch("shohin._call", slow):
                with self.assertRaises(KeyboardInterrupt):
                    next(chat.send(MESSAGE))
        finally:
            signal.signal(signal.SIGINT, before)
        # The prompt was not computed: the first piece is the last, of a reply that was cancelled.
        self.assertEqual(found, [True, True, (0, 4)])
        self.assertTrue(chat.send(MESSAGE).text())

    @unittest.skipUnless(hasattr(signal, "pthread_kill"), "signals of the system")
    def test_an_exception_of_a_signal_handler_waits_for_the_prompt(self):
        chat = self.model.chat(**GREEDY)
        call, interrupted, computed, interrupts = shohin._call, threading.Event(), threading.Event(), []

        def handler(*_):
            raise ZeroDivisionError if not interrupts else KeyboardInterrupt

        def slow(function, *arguments, **options):
            if function == "chat_next":
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                self.assertTrue(interrupted.wait(30))
                code = call(function, *arguments, **options)
                computed.set()
                return code
            if function == "chat_interrupt":
                interrupts.append(True)
                if len(interrupts) == 1:
                    signal.raise_signal(signal.SIGINT)
                code = call(function, *arguments, **options)
                interrupted.set()
                return code
            return call(function, *arguments, **options)

        before = signal.signal(signal.SIGINT, handler)
        try:
            with unittest.mock.patch("shohin._call", slow), self.assertRaises(ZeroDivisionError):
                next(chat.send(MESSAGE))
            self.assertTrue(computed.is_set())
        finally:
            signal.signal(signal.SIGINT, before)
            interrupted.set()
        self.assertEqual(len(interrupts), 2)
        self.assertTrue(chat.send(MESSAGE).text())

    def test_a_reply_without_another_thread(self):
        # Python 3.12 starts none when it exits.
        with unittest.mock.patch("_thread.start_new_thread", side_effect=RuntimeError("can't create new thread")):
            self.assertEqual(self.model.chat(**GREEDY).send(MESSAGE).text(), os.environ["SHOHIN_REPLY"])

    def test_a_signal_handler_stops_a_reply(self):
        # So random that it does not end by itself soon.
        chat = self.model.chat(temperature=50, top_k=0, top_p=1)
        reply = chat.send(MESSAGE)
        stopped = []

        def stop(*_):
            reply.stop()
            stopped.append(True)

        def copy(*arguments):
            if not stopped:
                signal.raise_signal(signal.SIGINT)
            return string_at(*arguments)

        string_at, before = ctypes.string_at, signal.signal(signal.SIGINT, stop)
        try:
            with unittest.mock.patch("ctypes.string_at", copy):
                reply.text()
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertEqual((stopped, reply.reason), ([True], "cancelled"))

    def test_a_later_message_ends_a_reply(self):
        chat = self.model.chat("You are a farmer.", **GREEDY)
        first = chat.send(MESSAGE)
        next(first)
        second = chat.send(MESSAGE)
        self.assertEqual(list(first), [])
        self.assertTrue(second.text())

    def test_threads_share_a_model(self):
        found = []
        def talk():
            found.append(self.model.chat(**GREEDY).send(MESSAGE).text())
        threads = [threading.Thread(target=talk) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(set(found), {os.environ["SHOHIN_REPLY"]})
        self.assertEqual(len(found), 4)

    def test_an_error_frees_the_chat(self):
        call = shohin._call

        def fail(function, *arguments, **options):
            if function == "chat_next":
                raise Error("device", "a test")
            return call(function, *arguments, **options)

        chat = self.model.chat()
        freed = weakref.ref(chat)
        gc.disable()
        try:
            with unittest.mock.patch("shohin._call", fail):
                # Not assertRaises, which clears the frames of the error.
                try:
                    next(chat.send(MESSAGE))
                except Error as error:
                    self.assertEqual(error.code, "device")
            del chat
            # The other thread has the chat until it has ended.
            deadline = time.monotonic() + 30
            while freed() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertIsNone(freed())
        finally:
            gc.enable()

    def test_handles_are_freed(self):
        model = Model.built_in()
        reply = model.chat().send(MESSAGE)
        next(reply)
        del model
        gc.collect()
        next(reply)
        del reply
        gc.collect()
        self.assertTrue(version())


if __name__ == "__main__":
    unittest.main()
