use super::*;
use crate::Error;
use crate::error::Name;
use crate::json;
use alloc::string::{String, ToString};

fn json_schema(text: &str) -> Result<Grammar> {
    Grammar::json_schema(text, Whitespace::Allowed)
}

fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = Matcher::new(grammar);
    text.bytes().all(|byte| matcher.push(grammar, byte)) && matcher.complete(grammar)
}

/// Verdicts of llama.cpp and of Python's `re`, from `tests/oracle/grammars.py`.
#[test]
fn plain_grammars_take_what_others_take() {
    let fixture = json::Value::parse(include_str!("../../../tests/fixtures/grammars.json")).unwrap();
    for (kind, build) in [("gbnf", Grammar::gbnf as fn(&str) -> Result<Grammar>), ("regex", Grammar::regex)] {
        for case in fixture.get(kind).unwrap().elements().unwrap() {
            let text = case.get("grammar").unwrap().as_string().unwrap();
            let grammar = build(&text).unwrap();
            for (verdict, expected) in [("yes", true), ("no", false)] {
                for text_of in case.get(verdict).unwrap().elements().unwrap() {
                    let given = text_of.as_string().unwrap();
                    assert_eq!(accepts(&grammar, &given), expected, "{given:?} in {text}");
                }
            }
        }
    }
}

#[test]
fn one_of_the_choices_is_taken() {
    let grammar = Grammar::choices(&["yes", "no", "not at all", "yes"]).unwrap();
    for (text, taken) in
        [("yes", true), ("no", true), ("not at all", true), ("not", false), ("y", false), ("", false)]
    {
        assert_eq!(accepts(&grammar, text), taken, "{text}");
    }
    for wrong in [&[][..], &["a", ""]] {
        assert_eq!(Grammar::choices(wrong).unwrap_err().code(), "argument");
    }
}

/// As in llama.cpp.
#[test]
fn texts_and_classes_may_have_line_ends() {
    let grammar = Grammar::gbnf("root ::= \"a\nb\" [\n\r] | \"c\"").unwrap();
    for (text, taken) in
        [("a\nb\n", true), ("a\nb\r", true), ("c", true), ("a\\nb\n", false), ("ab\n", false)]
    {
        assert_eq!(accepts(&grammar, text), taken, "{text:?}");
    }
}

/// Such as are in grammars that were made from regular expressions and schemas.
#[test]
fn grammars_may_have_the_escapes_and_bounds_of_generated_ones() {
    for (grammar, yes, no) in [
        (r#"root ::= [a\-z]+"#, "a-z", "b"),
        (r#"root ::= [\d.]+ "\-" [\w\-]*"#, "1.5-a_b-", "a-b"),
        (r#"root ::= [^\s]+"#, "ab", "a b"),
        (r#"root ::= "\/" [\/\.]"#, "/.", "/a"),
        (r#"root ::= [a-z]{2,2000}"#, "ab", "a"),
    ] {
        let grammar = Grammar::gbnf(grammar).unwrap();
        assert!(accepts(&grammar, yes) && !accepts(&grammar, no), "{yes} {no}");
    }
    let grammar = Grammar::gbnf("root ::= [a-z]{2,2000} \".\"").unwrap();
    for (count, fits) in [(2000, true), (2001, false)] {
        assert_eq!(accepts(&grammar, &("a".repeat(count) + ".")), fits, "{count}");
    }
}

#[test]
fn malformed_grammars_are_refused() {
    for (text, message) in [
        ("", "line 1 of the grammar has no rule root"),
        ("a ::= \"b\"", "has no rule root"),
        ("root := \"a\"", "line 1 of the grammar expects ::= after the name of a rule: := ?a?"),
        ("root ::= \n \"a\nb", "line 2 of the grammar has a text without an end: ?a"),
        ("root ::= [a\n", "line 1 of the grammar has a class without an end: [a"),
        ("root ::= [a-", "ends within a class"),
        ("root ::= [b-a]", "a range whose end is before"),
        ("root ::= (\"a\"", "expects ) at the end of a group"),
        ("root ::= \"a\")", "expects a text, a class, a rule or a group: )"),
        ("root ::= \"a\\q\"", "has an escape that is not known: \\q?"),
        ("root ::= [a\\q]", "has an escape that is not known: \\q]"),
        ("root ::= \"\\xg\"", "expects the digits"),
        ("root ::= \"\\uD800\"", "expects the digits"),
        ("root ::= a\n", "uses a rule that is missing: a"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2 of the grammar has two rules: root"),
        ("root ::= root \"a\" | \"b\"", "line 1 of the grammar has a rule that begins with itself"),
        (
            "root ::= \"x\" a\na ::= b? a \"c\" | \"d\"\nb ::= \"e\"",
            "line 2 of the grammar has a rule that begins",
        ),
        ("root ::= \"a\"{2,1}", "expects {count}, {min,} or {min,max}"),
        ("root ::= \"a\"{4097}", "expects {count}"),
        ("root ::= <think>", "expects a text, a class, a rule or a group: <think>"),
        ("root ::= \"\"", "grammar has no text of at least one character"),
        ("root ::= \"a\" root", "grammar has no text of at least one character"),
    ] {
        let error = Grammar::gbnf(text).unwrap_err().to_string();
        assert!(error.contains(&message.replace('?', "\"")), "{text}: {error}");
    }
    let deep = alloc::format!("root ::= {}\"a\"{}", "(".repeat(70), ")".repeat(70));
    assert!(Grammar::gbnf(&deep).unwrap_err().to_string().contains("nests groups too deeply"));
    let mut chain = String::from("root ::= r0 root | \"a\"\n");
    for i in 0..300 {
        chain += &alloc::format!("r{i} ::= r{} root \"x\" | \"b\"\n", i + 1);
    }
    chain += "r300 ::= \"z\"";
    assert!(Grammar::gbnf(&chain).unwrap_err().to_string().contains("too deeply"));
    for wrong in ["a(?=b)", "(?<=a)b", "(?i)a", "\\1", "a\\b", "\\p{L}"] {
        assert_eq!(Grammar::regex(wrong).unwrap_err().code(), "unsupported", "{wrong}");
    }
    for (wrong, at, expected) in [
        ("[", 0, "a ] that closes the class"),
        ("a[^b", 1, "a ] that closes the class"),
        ("é[\\", 3, "a character after the backslash"),
        ("(a", 0, "a ) that closes the group"),
        ("(?", 0, "a > after"),
        ("(?<n", 0, "a > after"),
        ("a)b", 1, "a ( for each )"),
        ("a|*", 2, "something to repeat"),
        ("a]", 1, "a backslash before"),
        ("[ab-a]", 2, "the lower one first"),
        ("[\\d-z]", 1, "the lower one first"),
        ("a{2,1}", 1, "{count}, {min,} or {min,max}"),
        ("a{1001}", 1, "at most 1000"),
        ("a{1", 1, "{count}"),
        ("^+", 1, "no repetition of ^"),
        ("\\xg0", 0, "hexadecimal digits"),
        ("a\\u{110000}", 1, "hexadecimal digits"),
        ("\\q", 0, "an escape of"),
        ("a\\", 1, "a character after the backslash"),
    ] {
        let error = Grammar::regex(wrong).unwrap_err();
        let found = Name::new(wrong.get(at..).unwrap());
        let says = alloc::format!("the regular expression at byte {at} is {found:?}, expected ");
        let error = error.to_string();
        assert!(error.starts_with(&says) && error.contains(expected), "{wrong}: {error}");
    }
    let error = json_schema(r#"{"type":"string","pattern":"["}"#).map(|_| ()).unwrap_err();
    assert!(error.to_string().ends_with("expected a ] that closes the class"), "{error}");
    assert_eq!(Grammar::regex("").unwrap_err().code(), "argument");
    assert_eq!(Grammar::regex("(a{1000}){1000}").unwrap_err().code(), "limit");
}

/// A schema, texts that it accepts, and texts that it rejects.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

#[test]
fn grammars_take_scalars_that_schemas_allow() {
    check(&[
        (
            r#"{"type":"integer"}"#,
            &["0", "-7", "123456789012345"],
            &["", "-", "00", "01", "1.0", "-0", "1e5", " 1"],
        ),
        (
            r#"{"type":"number"}"#,
            &["0", "-0", "1.5", "1e9", "2E-10", "0.001"],
            &["1.", ".5", "1e", "1e100", "+1", "01"],
        ),
        (
            r#"{"type":"integer","minimum":-3,"exclusiveMaximum":12}"#,
            &["-3", "0", "7", "11"],
            &["-4", "12", "13", "100", "-30"],
        ),
        (
            r#"{"type":"number","minimum":0,"maximum":1}"#,
            &["0", "0.5", "1", "1.0", "0.00000000000001"],
            &["-1", "1.1", "1.01", "2", "1e0"],
        ),
        (
            r#"{"type":"number","exclusiveMinimum":0.5,"maximum":0.52}"#,
            &["0.51", "0.52", "0.501"],
            &["0.5", "0.50", "0.53", "0", "0.521"],
        ),
        (
            r#"{"type":"string"}"#,
            &[r#""""#, r#""aé🦙\n\"\u00e9""#],
            &["\"", "\"\u{1}\"", r#""\x""#, r#""\ud800""#, "a"],
        ),
        (
            r#"{"type":"string","minLength":2,"maxLength":3}"#,
            &[r#""ab""#, r#""é🦙\n""#],
            &[r#""a""#, r#""abcd""#],
        ),
        (r#"{"type":["null","boolean"]}"#, &["null", "true", "false"], &["nul", "0", "truefalse"]),
        (
            r#"{"enum":[1,12,"a",null,{"x":[1,2]}]}"#,
            &["1", "12", r#""a""#, "null", r#"{"x": [1, 2]}"#],
            &["2", "121", "{}"],
        ),
        (r#"{"const":"a\"b"}"#, &[r#""a\"b""#], &[r#""ab""#]),
        (r#"{"type":"integer","enum":[1.0,2.5,1e20]}"#, &["1.0", "1e+20"], &["1", "2.5"]),
        (r#"{"const":12345678901234567890}"#, &["12345678901234567890"], &["1"]),
    ]);
}

#[test]
fn grammars_take_arrays_and_objects_that_schemas_allow() {
    check(&[
        (
            r#"{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2}"#,
            &["[1]", "[1,2]", "[ 1, 2 ]", "[\n  1\n]"],
            &["[]", "[1,2,3]", "[1,]", "[,1]", "[1  ,2]"],
        ),
        (r#"{"type":"array","items":false}"#, &["[]"], &["[1]", "[ ,"]),
        (
            r#"{"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"}},"required":["a"]}"#,
            &[
                r#"{"a":1}"#,
                r#"{"a": 2, "ab":null}"#,
                r#"{ "a": 1, "ab": null }"#,
                "{\n    \"a\": 1,\n    \"ab\": null\n}",
            ],
            &[
                r#"{"a" :1}"#,
                r#"{"a":1 ,"ab":null}"#,
                r#"{"a":  1}"#,
                "{\"a\":\n1}",
                "{\"a\":1\n,\"ab\":null}",
                r#"{"ab":null,"a":1}"#,
                "{}",
                r#"{"ab":null}"#,
                r#"{"a":1,"a":2}"#,
                r#"{"a":1,"c":2}"#,
                r#"{"a":1,}"#,
                r#"{"\u0061":1}"#,
            ],
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"null"}}"#,
            &["{}", r#"{"b":null}"#, r#"{"a":1,"":null,"ab":null}"#, r#"{"\"":null}"#],
            &[r#"{"a":null}"#, r#"{"b":1}"#, r#"{"\u0061":null}"#, r#"{"a":1,"a":null}"#],
        ),
        (
            r#"{"required":["k"]}"#,
            &[r#"{"k":[{}]}"#, r#"{"k":null,"x":1}"#],
            &["{}", "1", r#"{"x":1,"k":null}"#, r#"{"k":1,"k":1}"#],
        ),
        (
            r##"{"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"}}]}"##,
            &["1", "[]", "[1,[2,[]]]"],
            &["null", "[[}"],
        ),
        (
            r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}}"##,
            &[r#"{"v":1,"next":{"v":2,"next":null}}"#],
            &[r#"{"v":1}"#, r#"{"v":1,"next":{}}"#],
        ),
        ("true", &["1", "{}", r#"[{"a":[null]}]"#], &["", "x"]),
    ]);
}

fn check(cases: &[Case]) {
    for (schema, taken, refused) in cases {
        let grammar = json_schema(schema).unwrap();
        for text in *taken {
            assert!(accepts(&grammar, text), "{schema} must take {text}");
        }
        for text in *refused {
            assert!(!accepts(&grammar, text), "{schema} must not take {text}");
        }
    }
}

#[test]
fn properties_keep_the_order_of_the_schema() {
    let schema = r#"{"type":"object","properties":{"z":{"type":"integer"},"b":{"type":"integer"},"m":{"type":"integer"}},"required":["r","m"],"additionalProperties":{"type":"integer"}}"#;
    let grammar = json_schema(schema).unwrap();
    for text in
        [r#"{"z":1,"b":2,"m":3,"r":4,"a":5}"#, r#"{"m":3,"r":4}"#, r#"{"b":2,"m":3,"r":4,"x":1,"y":2}"#]
    {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in [
        r#"{"b":2,"z":1,"m":3,"r":4}"#,
        r#"{"r":4,"m":3}"#,
        r#"{"a":5,"m":3,"r":4}"#,
        r#"{"m":3,"r":4,"a":5,"z":1}"#,
        r#"{"b":2,"r":4}"#,
    ] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn replies_have_no_white_space_unless_it_is_allowed() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"array"},"c":{"const":{"x y": [1, ", "]}}}}"#;
    let dense = r#"{"a":[1,{"k":" "}],"c":{"x y":[1,", "]}}"#;
    let spaced = [r#"{"a": []}"#, r#"{"a":[1, 2]}"#, "{\n  \"a\":[]}", r#"{ "a":[]}"#, r#"{"a":[] }"#];
    let grammar = Grammar::json_schema(schema, Whitespace::None).unwrap();
    assert!(accepts(&grammar, dense));
    for text in spaced {
        assert!(!accepts(&grammar, text), "{text}");
        assert!(accepts(&json_schema(schema).unwrap(), text), "{text}");
    }
    let object = r#"{"a":{"b":[true,null]}}"#;
    assert!(accepts(&Grammar::json_object(Whitespace::None), object));
    assert!(!accepts(&Grammar::json_object(Whitespace::None), r#"{"a": 1}"#));
    assert!(accepts(&Grammar::json_object(Whitespace::Allowed), r#"{"a": 1}"#));
}

/// Verdicts of zod, from `tests/oracle/zod.mjs`.
#[test]
fn strings_of_zod_are_taken_as_zod_takes_them() {
    let fixture = json::Value::parse(include_str!("../../../tests/fixtures/zod.json")).unwrap();
    for case in fixture.elements().unwrap() {
        let name = case.get("name").unwrap().as_string().unwrap();
        let grammar = json_schema(&case.get("schema").unwrap().as_string().unwrap());
        let grammar = grammar.unwrap_or_else(|error| panic!("{name}: {error}"));
        for (verdict, expected) in [("yes", true), ("no", false)] {
            for text in case.get(verdict).unwrap().elements().unwrap() {
                let given = text.as_string().unwrap();
                assert_eq!(accepts(&grammar, &format(&["\"", &given, "\""])), expected, "{given} in {name}");
            }
        }
    }
}

#[test]
fn a_format_holds_beside_a_pattern_where_it_can() {
    for (schema, taken, refused) in [
        (r#""pattern":"^\\d{4}-\\d\\d-\\d\\d$","format":"date""#, "2024-02-29", "2023-02-29"),
        (r#""pattern":"@corp\\.com$","format":"email""#, "jane@corp.com", "jane@corp.org"),
        (r#""pattern":"^mailto:[^/]","format":"uri""#, "mailto:jane", "https://a"),
        (r#""pattern":"a","format":"date""#, "a", "b"),
        (r#""pattern":"^\\d","format":"regex""#, "1(", "("),
        (r#""pattern":"^a","format":"emoji","minLength":2"#, "ab", "a"),
        (r#""pattern":"a","allOf":[{"pattern":"b"},{"pattern":"c"}],"maxLength":3"#, "cab", "bac1"),
        // An automaton for both would be too large.
        (r#""pattern":"^[a-z.]{0,900}@[a-z.]{0,900}$","format":"email""#, "a@b", "1@b"),
    ] {
        let schema = format(&[r#"{"type":"string","#, schema, "}"]);
        let grammar = json_schema(&schema).unwrap();
        for (text, expected) in [(taken, true), (refused, false)] {
            assert_eq!(accepts(&grammar, &format(&["\"", text, "\""])), expected, "{text} in {schema}");
        }
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (schema, code) in [
        ("", "malformed"),
        ("{", "malformed"),
        ("1", "unsupported"),
        (r#"{"type":"text"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"(?=a)"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"(?<!a)b"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"(a)\\1"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"\\bword"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"(a"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"a)"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"[a"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"[b-a]"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"a**"}"#, "unsupported"),
        (r#"{"type":"string","pattern":"a{2,1}"}"#, "unsupported"),
        (r#"{"type":"string","pattern":1}"#, "unsupported"),
        (r#"{"type":"string","pattern":"^(?=a)","format":"date"}"#, "unsupported"),
        (r#"{"type":"string","format":"x","allOf":[{"pattern":"a"},{"pattern":"(?=a)"}]}"#, "unsupported"),
        (r#"{"allOf":[{"pattern":"a"},{"pattern":"b"}]}"#, "unsupported"),
        (r#"{"type":"string","allOf":[{"pattern":"^a$"},{"pattern":"^b$"}]}"#, "option"),
        (r#"{"type":"string","format":"regex"}"#, "unsupported"),
        (r#"{"type":"string","format":1}"#, "unsupported"),
        (r#"{"type":"number","multipleOf":0.5}"#, "unsupported"),
        (r#"{"type":"number","multipleOf":0}"#, "unsupported"),
        (r#"{"uniqueItems":true}"#, "unsupported"),
        (r#"{"type":"number","minimum":0.1234567890123456}"#, "unsupported"),
        (r#"{"not":{}}"#, "option"),
        (r#"{"not":{"type":"string"}}"#, "unsupported"),
        (r#"{"anyOf":[]}"#, "unsupported"),
        (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "unsupported"),
        (r#"{"oneOf":[{"const":1},{"const":1.0}]}"#, "unsupported"),
        (r##"{"$ref":"#/$defs/a"}"##, "unsupported"),
        (r#"{"$ref":"https://example.com/a"}"#, "unsupported"),
        (r#"{"minLength":-1}"#, "unsupported"),
        (r#"{"const":1e999}"#, "unsupported"),
        (r#"{"enum":["\ud800"]}"#, "malformed"),
        (r#"{"const":{"\udc00":1}}"#, "malformed"),
        (r#"{"properties":{"\ud83d":{}}}"#, "malformed"),
        // No value matches these.
        (r#"{"enum":[1.5],"type":"integer"}"#, "option"),
        (r#"{"type":"integer","multipleOf":7,"minimum":8,"maximum":13}"#, "option"),
        (r#"{"type":"string","pattern":"^a$","minLength":2}"#, "option"),
        (r#"{"type":"string","pattern":"a^"}"#, "option"),
        (r#"{"type":"string","pattern":"^[]$"}"#, "option"),
        (r#"{"type":"string","pattern":"^\\x00$"}"#, "option"),
        ("false", "option"),
        (r##"{"$ref":"#"}"##, "option"),
        (r#"{"type":"string","minLength":3,"maxLength":2}"#, "option"),
        (r#"{"type":"integer","minimum":3,"maximum":2}"#, "option"),
        (r#"{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":1}"#, "option"),
        (r#"{"enum":[1],"type":"string"}"#, "option"),
        (r##"{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}"##, "option"),
        (r#"{"required":["a"],"additionalProperties":false}"#, "option"),
        (r#"{"type":"array","items":false,"minItems":1}"#, "option"),
    ] {
        assert_eq!(json_schema(schema).map(|_| ()).map_err(|e| e.code()), Err(code), "{schema}");
    }
}

#[test]
fn constants_are_numbers_that_floats_can_hold() {
    for (schema, at) in [
        (r#"{"const":1e999}"#.into(), "/const"),
        (r#"{"items":{"enum":[0,[-1e999]]}}"#.into(), "/items/enum"),
        (alloc::format!("{{\"const\":1{}}}", "0".repeat(320)), "/const"),
    ] {
        let error = json_schema(&schema).map(|_| ());
        assert!(matches!(&error, Err(Error::Unsupported { key, .. }) if key.to_string() == at), "{error:?}");
    }
    let name = r#"{"name":"\ud800","parameters":{}}"#;
    assert_eq!(Grammar::tool_calls(&[name], true).map(|_| ()).map_err(|e| e.code()), Err("malformed"));
}

#[test]
fn hostile_schemas_end_in_errors_soon() {
    let nested = |n: usize| format(&[&"[".repeat(n), &"]".repeat(n)]);
    let names = |n: usize| {
        let names: Vec<String> = (0..n).map(|i| alloc::format!("\"{i}\":{{}}")).collect();
        alloc::format!("{{\"properties\":{{{}}}}}", names.join(","))
    };
    let chain = |n: usize| {
        let defs: Vec<String> =
            (0..n).map(|i| alloc::format!("\"{i}\":{{\"$ref\":\"#/$defs/{}\"}}", i + 1)).collect();
        alloc::format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{}}}}}", defs.join(","))
    };
    let any_of = |n: usize| alloc::format!("{{\"anyOf\":[{}]}}", alloc::vec!["true"; n].join(","));
    let enumeration = alloc::format!("{{\"enum\":[{}]}}", alloc::vec!["1"; 100_000].join(","));
    let pattern = |text: &str| alloc::format!("{{\"type\":\"string\",\"pattern\":\"{text}\"}}");
    // Every other character, so that none are adjacent.
    let apart = |n: u32| (0..n).filter_map(|i| char::from_u32(0x1_0000 + 2 * i)).collect::<String>();
    let spellings =
        r##"{"$defs":{"a":[{"enum":["b"]}]},"anyOf":[{"$ref":"#/$defs/a/0"},{"$ref":"#/$defs/a/00"}]}"##
            .into();
    // Nested schemas are compiled again with every schema that is referenced.
    let values: Vec<String> = (0..4000).map(|i| alloc::format!("\"{i}\"")).collect();
    let within =
        alloc::format!("{}{{\"enum\":[{}]}}{}", "{\"items\":".repeat(60), values.join(","), "}".repeat(60));
    let references: Vec<String> = (0..60)
        .map(|n| alloc::format!("{{\"$ref\":\"#/anyOf/60{}\"}}", "/items".repeat(n)))
        .chain([within])
        .collect();
    let references = references.join(",");
    let deep = alloc::format!("{}true{}", "{\"items\":".repeat(100), "}".repeat(100));
    for (schema, codes) in [
        (alloc::format!("{{\"x\":{}}}", nested(5000)), &["limit"][..]),
        (" ".repeat(2 << 20), &["limit"]),
        ("{\"$ref\":\"#".repeat(20_000), &["malformed", "limit"]),
        (names(129), &["limit"]),
        (chain(2000), &["limit"]),
        (deep, &["limit"]),
        (enumeration, &["limit"]),
        ("{\"type\":\"string\",\"minLength\":9999999999}".into(), &["unsupported"]),
        (pattern("a.{20}b"), &["limit"]),
        (pattern("(a{1,1000}){1,1000}"), &["limit"]),
        (pattern("((((){1000}){1000}){1000}){1000}"), &["limit"]),
        (pattern(&("(".repeat(5000) + &")".repeat(5000))), &["unsupported"]),
        (pattern(&"[a-z]?".repeat(3000)), &["limit"]),
        (pattern(&alloc::format!("[{}]{{1000}}", apart(20_000))), &["limit"]),
        (alloc::format!("{{\"anyOf\":[{}]}}", alloc::vec![pattern("a.{8}b"); 2000].join(",")), &["limit"]),
        (spellings, &["unsupported"]),
        (alloc::format!("{{\"anyOf\":[{}]}}", references), &["limit"]),
        (pattern(".*").replace('}', ",\"minLength\":100000}"), &["limit"]),
    ] {
        let code = json_schema(&schema).map(|_| ()).map_err(|e| e.code());
        assert!(code.is_err_and(|code| codes.contains(&code)), "{:.60}: {code:?}", schema);
    }
    assert!(json_schema(&names(128)).is_ok());
    assert!(json_schema(&pattern(&(String::from("[") + &"a".repeat(200_000) + "]{1000}"))).is_ok());
    for text in ["(a*)*b", "(a|a)*$", "((a+)+)+c", "(.*)(.*)(.*)x", "^.{1,1000}$"] {
        assert!(json_schema(&pattern(text)).is_ok(), "{text}");
    }
    assert!(json_schema(&any_of(50_000)).is_ok());
}

fn format(parts: &[&str]) -> String {
    parts.concat()
}

#[test]
fn calls_name_a_tool_and_fit_its_parameters() {
    let tools = [
        r#"{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}"#,
        r#"{"name":"now"}"#,
    ];
    let grammar = Grammar::tool_calls(&tools, false).unwrap().after_thoughts().unwrap();
    let add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    for text in [
        "",
        "Hello <b>you</b>.",
        add,
        &format(&["Let me see.\n", add, "\n", add, " done"]),
        &format(&["<think>\nI could write <tool_call>x.\n</think>\n\n", add]),
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        "<<tool_call",
    ] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in [
        "<tool_call>",
        "<<tool_call>x",
        "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>",
        &format(&[add, "<tool_call>\n{}"]),
    ] {
        assert!(!accepts(&grammar, text), "{text}");
    }
    let grammar = Grammar::tool_calls(&tools, true).unwrap().after_thoughts().unwrap();
    for text in [add, &format(&[add, "\n", add]), &format(&["<think>\nHm.\n</think>\n\n", add])] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in ["", "Hello", "<think>\n</think>\n\nHello", &format(&[add, "\nDone."])] {
        assert!(!accepts(&grammar, text), "{text}");
    }
    let grammar = Grammar::tool_calls(&tools, true).unwrap().after_open_thoughts().unwrap();
    for text in [&format(&["Hm.\n</think>\n\n", add]), &format(&["</think>", add])] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in [add, "Hm.", "Hm.\n</think>\n\nHello"] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn arguments_are_objects_whatever_the_schema_allows() {
    let call = |arguments: &str| {
        format(&["<tool_call>\n{\"name\": \"f\", \"arguments\": ", arguments, "}\n</tool_call>"])
    };
    let object = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}"#;
    for (schema, taken) in [
        ("{}".into(), r#"{"b": 2}"#),
        ("true".into(), r#"{"b": 2}"#),
        (r#"{"type":["object","null"]}"#.into(), r#"{"b": 2}"#),
        (format(&[r#"{"anyOf":["#, object, r##",{"type":"null"},{"$ref":"#"}]}"##]), r#"{"a": 2}"#),
        (r#"{"enum":[1,null,{"a":1},[]]}"#.into(), r#"{"a": 1}"#),
    ] {
        let tool = format(&[r#"{"name":"f","parameters":"#, &schema, "}"]);
        let grammar = Grammar::tool_calls(&[&tool], true).unwrap();
        assert!(accepts(&grammar, &call(taken)), "{schema}");
        for refused in ["1", "null", "[]", "\"a\"", "true"] {
            assert!(!accepts(&grammar, &call(refused)), "{schema}: {refused}");
        }
    }
    let never = r#"{"name":"f","parameters":{"type":"array"},"strict":true}"#;
    let error = Grammar::tool_calls(&[never], true).unwrap_err().to_string();
    assert!(error.ends_with("expected a schema that objects satisfy"), "{error}");
}

#[test]
fn references_are_parts_of_uris() {
    let schema =
        r##"{"$ref":"#/$defs/Record%3Ca%20b%2Cc~1d%3E%C3%A9","$defs":{"Record<a b,c/d>é":{"const":1}}}"##;
    assert!(accepts(&json_schema(schema).unwrap(), "1"));
    for malformed in ["%", "%4", "%zz", "%+1", "%ff", "a%é"] {
        let schema = format(&[r##"{"$ref":"#/$defs/"##, malformed, r#"","$defs":{}}"#]);
        assert!(Grammar::json_schema(&schema, Whitespace::None).is_err(), "{malformed}");
    }
}

#[test]
fn a_single_call_ends_the_reply() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for required in [false, true] {
        let around = if required { Around::Nothing } else { Around::Text };
        let grammar = Grammar::calls(&[(0, r#"{"name":"now"}"#)], around, false, &Spelling::HERMES).unwrap();
        assert!(accepts(&grammar, call));
        assert_eq!(accepts(&grammar, &format(&["Hm.\n", call])), !required);
        assert_eq!(accepts(&grammar, "No."), !required);
        for more in [format(&[call, "\n", call]), format(&[call, "\n"]), format(&[call, " So."])] {
            assert!(!accepts(&grammar, &more), "{more}");
        }
        let mut matcher = Matcher::new(&grammar);
        assert!(call.bytes().all(|byte| matcher.push(&grammar, byte)));
        matcher.settle();
        assert!(matcher.finished());
    }
}

#[test]
fn a_reply_has_calls_or_the_format() {
    let tool = r#"{"name":"add","parameters":{"type":"object","properties":{"a":{"const":[1, 2]}}}}"#;
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>";
    let schema = r#"{"type":"object","properties":{"b":{"const":[1, 2]}},"required":["b"]}"#;
    let (dense, spaced) = (r#"{"b":[1,2]}"#, r#"{"b": [1, 2]}"#);
    for (form, is_dense) in
        [(Grammar::json_schema(schema, Whitespace::None), true), (json_schema(schema), false)]
    {
        let form = form.unwrap();
        let grammar = Grammar::calls(&[(0, tool)], Around::Or(&form), true, &Spelling::HERMES).unwrap();
        for grammar in [grammar.clone(), grammar.after_thoughts().unwrap()] {
            for text in [call, &format(&[call, "\n", call])] {
                assert!(accepts(&grammar, text), "{text}");
            }
            assert_eq!((accepts(&grammar, dense), accepts(&grammar, spaced)), (is_dense, !is_dense));
            for text in ["", "Hm.", "Hm. <tool_call>", "{}", &format(&[call, dense])] {
                assert!(!accepts(&grammar, text), "{text}");
            }
        }
    }
    let choices = Grammar::choices(&["yes", "<tool_call>"]).unwrap();
    let grammar = Grammar::calls(&[(0, tool)], Around::Or(&choices), false, &Spelling::HERMES).unwrap();
    for (text, taken) in [("yes", true), ("<tool_call>", true), (call, true), ("no", false)] {
        assert_eq!(accepts(&grammar, text), taken, "{text}");
    }
}

/// One keyword that is not supported does not take the other tools away.
/// What is not supported is left out and named; what is beside it counts.
#[test]
fn a_tool_keeps_what_is_supported_of_its_schema() {
    let schema = r##"{"type":"object","required":["city","tags","point"],"additionalProperties":false,"properties":{
        "city":{"type":"string","format":"city-name","minLength":2,"pattern":"(?=B)"},
        "tags":{"type":"array","uniqueItems":true,"items":{"enum":["a","b"],"minLength":1},"contains":{"const":"a"}},
        "point":{"$ref":"#/$defs/point","type":"object","nullable":true},
        "never":{"not":{}},
        "some":{"type":"cow","minimum":3},
        "either":{"oneOf":[{"type":"integer"},{"type":"number"}]}
    },"$defs":{"point":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},"minProperties":1}"##;
    let tool = alloc::format!(r#"{{"name":"f","parameters":{schema}}}"#);
    let call = |arguments: &str| {
        alloc::format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let grammar = Grammar::tool_calls(&[&tool], true).unwrap();
    for (arguments, fits) in [
        (r#"{"city": "Bern", "tags": ["a", "a"], "point": {"x": 1}}"#, true),
        (r#"{"city": "Rome", "tags": [], "point": null}"#, true),
        (r#"{"city": "Rome", "tags": [], "point": null, "some": 4, "either": 1.5}"#, true),
        (r#"{"city": "B", "tags": [], "point": null}"#, false),
        (r#"{"city": "Bern", "tags": ["c"], "point": null}"#, false),
        (r#"{"city": "Bern", "tags": []}"#, false),
        (r#"{"city": "Bern", "tags": [], "point": {"x": "1"}}"#, false),
        (r#"{"city": "Bern", "tags": [], "point": {}}"#, false),
        (r#"{"city": "Bern", "tags": [], "point": null, "never": 1}"#, false),
        (r#"{"city": "Bern", "tags": [], "point": null, "other": 1}"#, false),
    ] {
        assert_eq!(accepts(&grammar, &call(arguments)), fits, "{arguments}");
    }
    let mut left = Grammar::left_out(&tool).unwrap();
    left.sort();
    assert_eq!(
        left,
        [
            "/minProperties",
            "/properties/city/pattern",
            "/properties/some/type",
            "/properties/tags/contains",
            "/properties/tags/items/minLength",
            "/properties/tags/uniqueItems",
        ]
    );
    assert_eq!(Grammar::left_out(r#"{"name":"f","parameters":{"type":"object"}}"#).unwrap(), [""; 0]);
    assert_eq!(Grammar::left_out(r#"{"name":"f","parameters":{"type":"array"}}"#).unwrap(), [""]);
}

/// As validators read them: a value satisfies all that is beside each other.
#[test]
fn schemas_beside_combined_ones_are_followed() {
    let schema = |text: &str| Grammar::json_schema(text, Whitespace::None);
    for (text, yes, no) in [
        (
            r#"{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"anyOf":[{"required":["a"]},{"required":["b"]}]}"#,
            &[r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":1,"b":2}"#][..],
            &["{}", r#"{"a":2}"#][..],
        ),
        (
            r##"{"$defs":{"s":{"type":"string","maxLength":3}},"$ref":"#/$defs/s","minLength":2}"##,
            &[r#""ab""#, r#""abc""#],
            &[r#""a""#, r#""abcd""#, "1"],
        ),
        (
            r#"{"allOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":2}},"required":["b"]}]}"#,
            &[r#"{"a":1,"b":2}"#],
            &[r#"{"a":1}"#, r#"{"b":2}"#],
        ),
        (
            r##"{"$defs":{"base":{"properties":{"a":{"const":1}},"required":["a"]}},"allOf":[{"$ref":"#/$defs/base"}],"properties":{"b":{"const":2}},"type":"object"}"##,
            &[r#"{"b":2,"a":1}"#, r#"{"a":1}"#],
            &[r#"{"b":2}"#],
        ),
        (
            r#"{"type":"array","items":{"type":"string","anyOf":[{"const":"x"},{"pattern":"^y+$"}]}}"#,
            &["[]", r#"["x","yy"]"#],
            &[r#"["z"]"#, "[1]"],
        ),
        (
            r#"{"type":"object","properties":{"a":{"not":{}},"b":{"not":false,"type":"null"}}}"#,
            &["{}", r#"{"b":null}"#],
            &[r#"{"a":1}"#],
        ),
        (r#"{"type":"array","items":{"const":1},"uniqueItems":false}"#, &["[1,1]"], &["[2]"]),
    ] {
        let grammar = schema(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for value in yes {
            assert!(accepts(&grammar, value), "{text}: {value}");
        }
        for value in no {
            assert!(!accepts(&grammar, value), "{text}: {value}");
        }
    }
    // Where both say something else, it is refused.
    for text in [
        r#"{"type":"string","anyOf":[{"type":"integer"}]}"#,
        r#"{"allOf":[{"properties":{"a":{"const":1}}},{"properties":{"a":{"const":2}}}]}"#,
        r#"{"allOf":[{"properties":{"a":{"const":1}},"additionalProperties":false},{"properties":{"b":{"const":2}}}]}"#,
        r##"{"$ref":"#","type":"object"}"##,
    ] {
        assert!(schema(text).is_err(), "{text}");
    }
}

#[test]
fn schemas_that_need_not_be_followed_may_have_anything() {
    let call = |arguments: &str| {
        alloc::format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let other =
        r#"{"function":{"name":"g","parameters":{"properties":{"a":{"type":"integer"}},"required":["a"]}}}"#;
    let tool = |schema: &str, strict: &str| {
        alloc::format!(r#"{{"type":"function","function":{{"name":"f","parameters":{schema}{strict}}}}}"#)
    };
    for (part, key) in [
        (r#""uniqueItems":true"#, "uniqueItems"),
        (r#""propertyNames":{}"#, "propertyNames"),
        (r#""nullable":true"#, "nullable"),
        (r#""multipleOf":0.01"#, "multipleOf"),
        (r#""type":"object","anyOf":[{"type":"string"}]"#, "anyOf/0/type"),
    ] {
        let schema = alloc::format!(r#"{{"type":"object","properties":{{"a":{{{part}}}}}}}"#);
        for strict in ["", ",\"strict\":null", ",\"strict\":false"] {
            let grammar = Grammar::tool_calls(&[other, &tool(&schema, strict)], true).unwrap();
            // The rest of the schema is followed unless that is declined.
            let free = strict.ends_with("false");
            assert_eq!(accepts(&grammar, &call(r#"{"b": [1, 1]}"#)), free, "{schema}{strict}");
            assert!(accepts(&grammar, &call("{}")), "{schema}{strict}");
            assert!(!accepts(&grammar, &call("1")), "{schema}{strict}");
            // The other tool's schema is followed all the same.
            assert!(!accepts(&grammar, &call("{}").replace("\"f\"", "\"g\"")));
            assert!(accepts(&grammar, &call(r#"{"a": 1}"#).replace("\"f\"", "\"g\"")));
        }
        let error = Grammar::tool_calls(&[other, &tool(&schema, ",\"strict\":true")], true).unwrap_err();
        let place = alloc::format!("tool 1: parameters/properties/a/{key} is not supported");
        assert!(error.to_string().starts_with(&place), "{error}");
    }
    // What is supported is followed unless that is declined.
    let schema = r#"{"type":"object","properties":{"a":{"const":1}},"required":["a"]}"#;
    for (strict, free) in [("", false), (",\"strict\":true", false), (",\"strict\":false", true)] {
        let grammar = Grammar::tool_calls(&[&tool(schema, strict)], true).unwrap();
        assert_eq!(accepts(&grammar, &call("{}")), free, "{strict}");
        assert!(accepts(&grammar, &call(r#"{"a": 1}"#)), "{strict}");
    }
    let grammar = Grammar::tool_calls(&[&tool("null", ",\"strict\":true")], true).unwrap();
    assert!(accepts(&grammar, &call(r#"{"b": 1}"#)));
    for (tool, says) in
        [(tool("[]", ""), "\"parameters\" is not a JSON"), (tool("{}", ",\"strict\":1"), "\"strict\" is not")]
    {
        let error = Grammar::tool_calls(&[&tool], true).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    // Each fits, but not all together.
    let large = alloc::format!(r#"{{"properties":{{"a":{{"enum":["{}"]}}}}}}"#, "x".repeat(200_000));
    let tools: Vec<String> =
        (0..30).map(|i| tool(&large, "").replace("\"f\"", &alloc::format!("\"f{i}\""))).collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    assert!(Grammar::tool_calls(&tools, true).is_ok());
}

/// Levels of operators, each of a rule of the one below.
fn levels(count: usize, level: &dyn Fn(usize) -> String) -> String {
    let mut text = String::from("root ::= r0\n");
    (0..count).for_each(|i| text += &alloc::format!("r{i} ::= {}\n", level(i)));
    text + &alloc::format!("r{count} ::= [0-9]+ | \"(\" root \")\"\n")
}

/// The most work of a byte of `text`, and the most choices that it leaves open. From each state on, some byte gets nearer to
/// the end.
fn work_of(grammar: &Grammar, text: &str) -> (u64, usize) {
    let (mut matcher, mut most, mut open) = (Matcher::new(grammar), 0, 0);
    let mut push = |matcher: &mut Matcher, byte| {
        let before = matcher.work();
        let taken = matcher.push(grammar, byte);
        most = most.max(matcher.work() - before);
        open = open.max(matcher.open());
        taken
    };
    for (i, byte) in text.bytes().enumerate() {
        assert!(push(&mut matcher, byte), "byte {i} of {text}");
        matcher.settle();
    }
    while !matcher.complete(grammar) {
        let left = matcher.shortest(grammar);
        let nearer = (0..=255u8).any(|byte| {
            if !push(&mut matcher, byte) {
                return false;
            }
            if matcher.shortest(grammar) < left {
                matcher.settle();
                return true;
            }
            matcher.truncate(0);
            false
        });
        assert!(nearer, "no byte leads to the end, which {left} tokens lead to, after {text}");
    }
    (most, open)
}

#[test]
fn levels_of_operators_do_not_multiply() {
    let operator = |i: usize| char::from(b'a' + i as u8);
    let many = |i: usize| alloc::format!("r{} (\"{}\" r{})*", i + 1, operator(i), i + 1);
    let right = |i: usize| alloc::format!("r{} \"{}\" r{i} | r{}", i + 1, operator(i), i + 1);
    let behind =
        |i: usize| alloc::format!("r{} \"!\" | r{} \"{}\" r{i} | r{}", i + 1, i + 1, operator(i), i + 1);
    for level in [&many as &dyn Fn(usize) -> String, &right, &behind] {
        for count in [1, 4, 16] {
            let grammar = Grammar::gbnf(&levels(count, level)).unwrap();
            for (text, complete) in
                [("(1a2)a((3a4a(5)a6))", true), ("12a(", false), ("((((1))))", true), ("1", true)]
            {
                assert_eq!(accepts(&grammar, text), complete, "{count} levels: {text}");
                let (work, open) = work_of(&grammar, text);
                // A level is begun, or ends, once.
                assert!(
                    work <= 40 + 20 * count as u64 && open <= 8 + count,
                    "{count} levels: {work}, {open}"
                );
            }
            for text in ["1a", ")", "1)", "(1", "1(2)", "z", "aa"] {
                assert!(!accepts(&grammar, text), "{count} levels: {text}");
            }
        }
    }
}

#[test]
fn a_byte_takes_bounded_work_in_any_grammar() {
    let wide: String = (0..300).map(|i| alloc::format!("r{i} ::= \"b{i}\" root?\n")).collect();
    let all: Vec<String> = (0..300).map(|i| alloc::format!("r{i} root \"x\"")).collect();
    let wide = alloc::format!("root ::= \"a\" | {}\n{wide}", all.join(" | "));
    let same: Vec<String> = (0..200).map(|i| alloc::format!("r{i} root")).collect();
    let rules: String = (0..200).map(|i| alloc::format!("r{i} ::= \"a\" root? | \"aa\"\n")).collect();
    let same = alloc::format!("root ::= \"a\" | {}\n{rules}", same.join(" | "));
    let ambiguous = "root ::= (a | b | c)*\na ::= \"a\" root? | \"aa\"\nb ::= \"a\" b? a | \"a\"\nc ::= \"a\" root c | \"a\"\n";
    let nested = "root ::= \"a\" root \"b\"? | \"a\"\n";
    let mut most = 0;
    for (grammar, text) in [
        (&*wide, String::from("b1b2b30b4b5")),
        (&*same, "a".repeat(12)),
        (ambiguous, "a".repeat(40)),
        (nested, "a".repeat(300) + &"b".repeat(200)),
    ] {
        most = most.max(work_of(&Grammar::gbnf(grammar).unwrap(), &text).0);
    }
    // All is done again, the nearest first, if there is too much; the last step of each can be longer than what is left.
    assert!(most > u64::from(matcher::MAX_WORK), "{most} does not reach the bound");
    assert!(most < 3 * u64::from(matcher::MAX_WORK), "{most}");
}

#[test]
fn grammars_that_begin_in_too_many_ways_are_refused() {
    let crossed = |count: usize| {
        let mut text = String::from("root ::= r0\n");
        for i in 0..count {
            let next = i + 1;
            text +=
                &alloc::format!("r{i} ::= r{next} \"x\" | q{i} \"y\"\nq{i} ::= r{next} \"z\" | \"w\" root\n");
        }
        text + &alloc::format!("r{count} ::= [0-9]+ | \"(\" root \")\"\n")
    };
    let grammar = Grammar::gbnf(&crossed(5)).unwrap();
    assert!(accepts(&grammar, "1zyxzyxx"));
    for count in [16, 30] {
        let error = Grammar::gbnf(&crossed(count)).unwrap_err();
        assert_eq!(error.code(), "limit", "{error}");
    }
    // Rules that may be empty because the next one may, in an order in which each round finds two.
    let mut text = String::from("root ::= \"a\"");
    (0..1200).step_by(2).chain((1..1200).step_by(2)).for_each(|i| text += &alloc::format!(" r{i}"));
    text += "\n";
    (0..1200).for_each(|i| text += &alloc::format!("r{i} ::= r{} (r{} root)?\n", i + 1, i + 1));
    text += "r1200 ::= root?";
    let error = Grammar::gbnf(&text).unwrap_err();
    assert_eq!(error.code(), "limit", "{error}");
}
