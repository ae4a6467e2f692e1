"""Texts that grammars in GBNF have and do not have, by llama.cpp, and regular expressions, by Python's `re`.

Writes tests/fixtures/grammars.json: for each grammar the texts of `yes` and `no`, some of them changed by a character at
random. llama.cpp judges with the vocabulary of SmolLM2, byte by byte.

    pip install llama-cpp-python
    python tests/oracle/grammars.py SMOLLM2.gguf
"""

import json
import random
import re
import sys
from pathlib import Path

import llama_cpp

OUT = Path(__file__).parent.parent / "fixtures" / "grammars.json"
LIST = r'''root ::= ("- " item)+
item ::= [^\n]+ "\n"
'''
ARITHMETIC = r'''# sums and products
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
'''
JSON = r'''root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
'''
EMPTY = r'''root ::= a? b? c?
a ::= "a" | "aa" b
b ::= "b"* (c "!")?
c ::= ( "c" | "(" root ")" | "" ){1,3}
'''
REPEATS = r'''root ::= pair{2,3} "." | word{2} pair{0,1}
pair ::= word "-" word |
  "<" root ">"
word ::= [äöü\u4e00-\u4e03]{1,2} # letters
'''
GRAMMARS = [
    (LIST, ["- a\n", "- one\n- two, three\n", "- a", "-a\n", "- \n", "", "- ä\n"]),
    (
        ARITHMETIC,
        ["1=2\n", "a+b*(c - 4)= x1\n", "(1)=(2)\n", "1==2\n", "((1+2)*3)/x_9=7\nq=1\n", "1 + = 2\n", "()=1\n", "a b=1\n"],
    ),
    (
        JSON,
        ["{}", '{"a": [1, 2.5e-3, {"b": null}]}', '{"a":"\\u00e4\\n"}', '{"a":}', "[1]", '{"a": 01}', '{"é": true }', '{"a":[]}'],
    ),
    (EMPTY, ["a", "aabbb", "bbc!", "c", "ccc", "(a)", "abc(bb)c", "((c!))", "!", "aaa", "a(b)(c)(a)", "cccc", "b!", "a!b"]),
    (REPEATS, ["ä-ö一二-üü.", "äöä", "ääöö", "<ää>ä-ä.", "a-b.", "ä-ö.", "ä-ä<öö>ä-ä.", "äö一二ä-<üü>", "<<ää>ö-ö.>ä-ö."]),
]
REGEXES = [
    (r"\d{4}-[01]\d", ["2024-01", "2024-21", "2024-1", "x2024-01", "2024-011"]),
    (r"(red|green|blue)( and (red|green))*", ["red", "red and green", "redand", "blue and blue", "green and red and red"]),
    (r"[A-Z][a-zäöü]+\.?", ["Hallo", "hallo", "Müller.", "M", "M.", "Ab.."]),
    (r'"[^"]*"\s?', ['"a"', '"', '"a" ', '"\n"', 'a"', '""']),
    (r"a*b*", ["a", "b", "aabb", "ba", "c"]),
    (r"^\w+$", ["abc_1", "a b", "ab\n"]),
]


def changed(text, r):
    at, other = r.randrange(len(text) + 1), r.choice("ab1\"-!(){},:. \nä[]=c<>")
    return r.choice([text[:at] + text[at + 1 :], text[:at] + other + text[at:], text[:at] + other + text[at + 1 :]])


class Judge:
    def __init__(self, path):
        self.llama = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        model = self.llama._model.model
        self.vocab = llama_cpp.llama_model_get_vocab(model)
        self.eos = llama_cpp.llama_vocab_eos(self.vocab)
        self.bytes = {}
        for token in range(llama_cpp.llama_vocab_n_tokens(self.vocab)):
            piece = self.llama.detokenize([token])
            if len(piece) == 1:
                self.bytes[piece[0]] = token

    def allows(self, sampler, token):
        data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(id=token, logit=1.0, p=0.0))
        array = llama_cpp.llama_token_data_array(data=data, size=1, selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(sampler, array)
        return data[0].logit > 0

    def has(self, grammar, text):
        """None if the vocabulary cannot write it."""
        sampler = llama_cpp.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        assert sampler, grammar
        try:
            for byte in text.encode():
                if byte not in self.bytes:
                    return None
                if not self.allows(sampler, self.bytes[byte]):
                    return False
                llama_cpp.llama_sampler_accept(sampler, self.bytes[byte])
            return self.allows(sampler, self.eos)
        finally:
            llama_cpp.llama_sampler_free(sampler)


def main():
    judge = Judge(sys.argv[1])
    r = random.Random(1)
    done = {"gbnf": [], "regex": []}
    for kind, all_of_kind in (("gbnf", GRAMMARS), ("regex", REGEXES)):
        for grammar, texts in all_of_kind:
            tried = set(texts)
            while len(tried) < 150:
                tried.add(changed(r.choice(sorted(tried)), r))
            verdicts = {"grammar": grammar, "yes": [], "no": []}
            # Replies have at least one character.
            for text in sorted(tried - {""}):
                has = judge.has(grammar, text) if kind == "gbnf" else bool(re.fullmatch(grammar, text))
                if has is not None:
                    verdicts["yes" if has else "no"].append(text)
            print(repr(grammar[:30]), len(verdicts["yes"]), len(verdicts["no"]))
            done[kind].append(verdicts)
    OUT.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
