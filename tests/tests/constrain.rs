//! Constrained replies against the `jsonschema` crate: whatever tokens are chosen, the text is valid JSON for
//! the schema; and the allowed tokens are exactly those found by trying each one.
#![cfg(not(target_family = "wasm"))]

use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value;
use shohin_core::chat::{self, ChatOptions, Message, Reply, Role, Template};
use shohin_core::constrain::{Constraint, Grammar, Vocabulary, Whitespace};
use shohin_core::generate::{Event, Generation, GenerationOptions, Reason, drive};
use shohin_core::session::Decoder;
use shohin_core::{CpuOptions, Format, Gguf, Sampler, SamplerConfig, Session, SessionOptions, Tokenizer};
use shohin_tests::Random;
use shohin_tests::meter::measure;
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::rounds::is_thorough;
use shohin_tests::vocabulary::QWEN3;

/// Schemas, and instances for which the grammar and the crate must agree.
const CASES: &[(&str, &[&str])] = &[
    // type
    (r#"{"type":"string"}"#, &[r#""""#, r#""aé🦙\"\\\n\t""#, "1", "null", "[]"]),
    (r#"{"type":"integer"}"#, &["0", "-7", "123456789012345", "1.5", "true", r#""1""#]),
    (r#"{"type":"number"}"#, &["0", "-7", "1.5", "0.001", "1e5", "null", r#""1""#]),
    (r#"{"type":"boolean"}"#, &["true", "false", "0", "null"]),
    (r#"{"type":"null"}"#, &["null", "false", "0"]),
    (r#"{"type":["integer","null","boolean"]}"#, &["3", "null", "true", "1.5", r#""a""#]),
    (r#"{"type":"array"}"#, &["[]", r#"[1,"a",[null,{}]]"#, "{}"]),
    (r#"{"type":"object"}"#, &["{}", r#"{"a":{"b":[1]}}"#, "[]"]),
    ("true", &["1", r#"{"a":[null]}"#]),
    ("{}", &["1", r#"{"a":[null]}"#]),
    // enum, const
    (
        r#"{"enum":["red","green","re",7,70,null,{"a":[1,"x"]}]}"#,
        &[r#""red""#, r#""re""#, "7", "70", "700", "null", r#"{"a":[1,"x"]}"#, r#"{"a":[1]}"#, r#""r""#],
    ),
    (r#"{"type":"string","enum":["a",1]}"#, &[r#""a""#, "1"]),
    (r#"{"const":"Infinity \"I\""}"#, &[r#""Infinity \"I\"""#, r#""I""#]),
    // minimum, maximum, exclusiveMinimum, exclusiveMaximum
    (
        r#"{"type":"integer","minimum":-3,"exclusiveMaximum":120}"#,
        &["-4", "-3", "-1", "0", "9", "99", "119", "120", "1000"],
    ),
    (
        r#"{"type":"integer","minimum":1000,"maximum":1999}"#,
        &["1", "999", "1000", "1500", "1999", "2000", "10000"],
    ),
    (
        r#"{"type":"integer","exclusiveMinimum":-100,"maximum":-10}"#,
        &["-100", "-99", "-10", "-9", "-1", "0", "10"],
    ),
    (r#"{"type":"number","minimum":0,"maximum":1}"#, &["0", "0.5", "1", "0.999", "1.001", "-0.5", "2"]),
    (
        r#"{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.001}"#,
        &["0.0005", "0.001", "0.1", "0.0001"],
    ),
    (r#"{"type":"number","minimum":-1.5,"maximum":-1.25}"#, &["-1.5", "-1.25", "-1.3", "-1.6", "-1", "1.3"]),
    (r#"{"type":"number","minimum":1e3}"#, &["999.5", "1000", "1000.5", "123456"]),
    (r#"{"minimum":5}"#, &["4", "5", "6.5"]),
    // multipleOf
    (r#"{"type":"integer","multipleOf":7}"#, &["0", "7", "-14", "700", "1", "8", "-13"]),
    (
        r#"{"type":"integer","multipleOf":12,"minimum":100,"maximum":120}"#,
        &["96", "108", "120", "100", "112", "132"],
    ),
    (
        r#"{"type":"number","multipleOf":5,"exclusiveMinimum":-6,"maximum":20}"#,
        &["-5", "0", "15", "20", "2.5", "-10", "25", "7"],
    ),
    // minLength, maxLength
    (r#"{"type":"string","minLength":2,"maxLength":3}"#, &[r#""a""#, r#""ab""#, r#""é🦙\n""#, r#""abcd""#]),
    (r#"{"type":"string","maxLength":0}"#, &[r#""""#, r#""a""#]),
    (r#"{"type":"string","minLength":40}"#, &[r#""0123456789012345678901234567890123456789""#, r#""short""#]),
    // pattern
    (
        r#"{"type":"string","pattern":"^[a-z]+(-[0-9]{2,3})?$"}"#,
        &[r#""abc""#, r#""abc-12""#, r#""abc-1""#, r#""""#, r#""abc-1234""#, r#""ABC""#],
    ),
    (
        r#"{"type":"string","pattern":"b|^c|d$"}"#,
        &[r#""abc""#, r#""cx""#, r#""xc""#, r#""xd""#, r#""dx""#, r#""""#],
    ),
    (
        r#"{"type":"string","pattern":"^(?:é|日本|🦙){2}\"?$"}"#,
        &[r#""éé""#, r#""日本🦙""#, r#""🦙""#, r#""éé\"""#, r#""日é""#],
    ),
    (
        r#"{"type":"string","pattern":"^[^a-z\\s\\d]*\\W?$","maxLength":4}"#,
        &[r#""""#, r#""ABÄ!""#, r#""ABÄ!?""#, r#""aB""#, r#""A ""#, r#""A b""#, r#""A7""#],
    ),
    (
        r#"{"type":"string","pattern":"\\w+@\\w+\\.(com|org)","minLength":8,"maxLength":12}"#,
        &[r#""ab@c.com""#, r#""a@c.com""#, r#""<me@here.org""#, r#""<me@here.orgs>""#, r#""me@here.net""#],
    ),
    (
        r#"{"type":"string","pattern":"^\\S\\u00e9\\x41.*?\\/$"}"#,
        &[r#""xéA/""#, r#""xéAA b/""#, r#"" éA/""#, r#""xéA""#],
    ),
    // format
    (
        r#"{"type":"string","format":"date"}"#,
        &[
            r#""2024-02-29""#,
            r#""2023-02-29""#,
            r#""2000-02-29""#,
            r#""1900-02-29""#,
            r#""2024-04-30""#,
            r#""2024-04-31""#,
            r#""2024-13-01""#,
        ],
    ),
    (
        r#"{"type":"string","format":"time"}"#,
        &[r#""23:59:59Z""#, r#""12:00:00.25+05:30""#, r#""24:00:00Z""#, r#""12:00""#],
    ),
    (
        r#"{"type":"string","format":"date-time"}"#,
        &[r#""2024-02-29T23:59:59Z""#, r#""2024-02-30T23:59:59Z""#, r#""2024-02-29""#],
    ),
    (
        r#"{"type":"string","format":"duration"}"#,
        &[r#""P1Y2M3D""#, r#""PT1H2M""#, r#""P1W""#, r#""P""#, r#""1D""#],
    ),
    (
        r#"{"type":"string","format":"uuid"}"#,
        &[r#""123e4567-e89b-12d3-a456-426614174000""#, r#""123e4567e89b12d3a456426614174000""#],
    ),
    (
        r#"{"type":"string","format":"email","maxLength":254}"#,
        &[r#""jane.doe@mail.example.org""#, r#""jane@""#, r#""@example.org""#],
    ),
    (r#"{"type":"string","format":"hostname"}"#, &[r#""www.example.org""#, r#""-a.org""#, r#""a b""#]),
    (r#"{"type":"string","format":"ipv4"}"#, &[r#""192.168.0.255""#, r#""192.168.0.256""#, r#""1.2.3""#]),
    (r#"{"type":"string","format":"ipv6"}"#, &[r#""2001:db8:0:0:0:0:0:1""#, r#""2001:db8""#]),
    (
        r#"{"type":"string","format":"uri"}"#,
        &[r#""https://example.org:8080/a%20b/c?d=e#f""#, r#""example.org""#, r#""https://a b""#],
    ),
    (r#"{"type":"string","format":"json-pointer"}"#, &[r#""/a/b-1""#, r#""""#, r#""a/b""#]),
    (r#"{"type":"string","format":"iri-reference"}"#, &[r#""https://example.org/a""#, r#""https://a b""#]),
    (r#"{"type":"string","format":"password","minLength":3}"#, &[r#""pass!""#, r#""é日?""#, r#""ab""#]),
    (r#"{"type":"integer","format":"uint8"}"#, &["3", "300", "1.5"]),
    // format beside pattern, and several patterns
    (
        r#"{"type":"string","format":"email","pattern":"^(?:[A-Za-z0-9_'+\\-]+\\.)*[A-Za-z0-9_'+\\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$","maxLength":254}"#,
        &[r#""jane.doe@mail.example.org""#, r#""jane@""#],
    ),
    (
        r#"{"type":"string","format":"date","pattern":"^20\\d\\d-\\d\\d-\\d\\d$"}"#,
        &[r#""2024-02-29""#, r#""2023-02-29""#, r#""1999-01-01""#],
    ),
    (
        r#"{"type":"string","format":"duration","pattern":"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"}"#,
        &[r#""P1Y2M3D""#, r#""PT1H""#, r#""P3W""#, r#""P""#, r#""PT""#],
    ),
    (
        r#"{"type":"string","format":"hostname","pattern":"^(?=.{1,253}\\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\\.?$"}"#,
        &[r#""www.example.org""#, r#""-a.org""#],
    ),
    (
        r#"{"type":"string","format":"ends_with","allOf":[{"pattern":"^a"},{"type":"string","pattern":"b.$"}],"maxLength":4}"#,
        &[r#""abc""#, r#""a日b日""#, r#""aba b""#, r#""a""#, r#""bba""#],
    ),
    // items, prefixItems, minItems, maxItems
    (
        r#"{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}"#,
        &["[1]", "[1,2]", "[1,2,3]", "[1,2,3,4]", r#"[1,"a"]"#],
    ),
    (
        r#"{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}"#,
        &["[]", "[1]", r#"[1,"a"]"#, r#"[1,"a",2]"#, r#"["a",1]"#],
    ),
    (
        r#"{"type":"array","prefixItems":[{"type":"integer"},{"const":"x"}],"items":{"type":"null"},"minItems":3}"#,
        &[r#"[1,"x"]"#, r#"[1,"x",null]"#, r#"[1,"x",null,null]"#, r#"[1,"x",1]"#, r#"["x","x",null]"#],
    ),
    (r#"{"prefixItems":[{"type":"null"}],"maxItems":1}"#, &["[]", "[null]", "[null,null]", "[1]"]),
    (
        r#"{"type":"array","items":{"type":"array","items":{"type":"boolean"},"maxItems":2}}"#,
        &["[]", "[[]]", "[[true],[false,true]]", "[[1]]", "[[true,true,true]]"],
    ),
    // properties, required, additionalProperties
    (
        r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0}},"required":["name"],"additionalProperties":false}"#,
        &[
            "{}",
            r#"{"name":"a"}"#,
            r#"{"name":"a","age":1}"#,
            r#"{"name":"a","age":-1}"#,
            r#"{"name":"a","x":1}"#,
            r#"{"age":1}"#,
        ],
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"},"abc":true},"required":["ab","z"],"additionalProperties":{"type":"boolean"}}"#,
        &[
            r#"{"ab":null,"z":true}"#,
            r#"{"ab":null,"z":1}"#,
            r#"{"ab":null,"abc":{},"z":false,"q":true}"#,
            r#"{"ab":null,"z":false,"a":true}"#,
            r#"{"z":true}"#,
            r#"{"ab":null,"z":true,"abcd":1}"#,
            r#"{"ab":null,"z":true,"":true}"#,
        ],
    ),
    (
        r#"{"type":"object","additionalProperties":{"type":"integer"}}"#,
        &["{}", r#"{"a":1,"b":2}"#, r#"{"a":null}"#, r#"{"a\"b\\":1}"#],
    ),
    (
        r#"{"type":"object","properties":{"a\"b":{"type":"integer"},"é":{"type":"null"},"\u0001":{"const":1}},"additionalProperties":false}"#,
        &["{}", r#"{"a\"b":1,"é":null,"\u0001":1}"#, r#"{"a\"b":null}"#],
    ),
    // anyOf, oneOf, allOf, $ref, $defs
    (
        r#"{"anyOf":[{"type":"string","maxLength":2},{"type":"string","enum":["long one"]},{"type":"integer"}]}"#,
        &[r#""ab""#, r#""abc""#, r#""long one""#, r#""long on""#, "5", "null"],
    ),
    (
        r#"{"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"number"}},"required":["kind","r"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"square"},"side":{"type":"number"}},"required":["kind","side"],"additionalProperties":false},{"type":"null"}]}"#,
        &[
            r#"{"kind":"circle","r":1.5}"#,
            r#"{"kind":"square","r":1}"#,
            r#"{"kind":"square","side":2}"#,
            "null",
            "{}",
        ],
    ),
    (
        r##"{"type":"object","properties":{"value":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#"}}},"required":["value"],"additionalProperties":false}"##,
        &[
            r#"{"value":1}"#,
            r#"{"value":1,"children":[{"value":2,"children":[]},{"value":3}]}"#,
            r#"{"value":1,"children":[{}]}"#,
        ],
    ),
    (
        r##"{"type":"object","properties":{"head":{"$ref":"#/$defs/node"},"copy":{"$ref":"#/properties/head"}},"required":["head"],"additionalProperties":false,"$defs":{"node":{"anyOf":[{"type":"null"},{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/node"}},"required":["v","next"],"additionalProperties":false}]}}}"##,
        &[
            r#"{"head":null}"#,
            r#"{"head":{"v":1,"next":{"v":2,"next":null}},"copy":null}"#,
            r#"{"head":{"v":1}}"#,
            "{}",
        ],
    ),
    (
        r##"{"allOf":[{"$ref":"#/definitions/a~1b"}],"definitions":{"a/b":{"type":"boolean"}}}"##,
        &["true", "1"],
    ),
    // Titles and the like do not restrict the value.
    (
        r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"https://example.com/x","title":"T","description":"D","type":"integer","default":1,"examples":[2],"deprecated":true,"readOnly":true,"$comment":"c"}"#,
        &["1", r#""a""#],
    ),
    // As Pydantic writes a small form.
    (
        r##"{"$defs":{"Item":{"properties":{"sku":{"maxLength":8,"minLength":3,"title":"Sku","type":"string"},"count":{"default":1,"exclusiveMinimum":0,"title":"Count","type":"integer"}},"required":["sku"],"title":"Item","type":"object"},"State":{"enum":["new","paid","sent"],"title":"State","type":"string"}},"properties":{"id":{"title":"Id","type":"integer"},"state":{"$ref":"#/$defs/State"},"items":{"items":{"$ref":"#/$defs/Item"},"minItems":1,"title":"Items","type":"array"},"note":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null,"title":"Note"}},"required":["id","state","items"],"title":"Order","type":"object"}"##,
        &[
            r#"{"id":1,"state":"paid","items":[{"sku":"abc"}]}"#,
            r#"{"id":1,"state":"new","items":[{"sku":"abc","count":2}],"note":null}"#,
            r#"{"id":1,"state":"lost","items":[{"sku":"abc"}]}"#,
            r#"{"id":1,"state":"paid","items":[]}"#,
            r#"{"id":1,"state":"paid","items":[{"sku":"ab"}]}"#,
            r#"{"id":1,"state":"paid","items":[{"sku":"abc","count":0}]}"#,
        ],
    ),
];

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().should_validate_formats(true).build(schema).unwrap()
}

/// Every keyword of `CASES` and no others is supported.
#[test]
fn the_grammar_and_the_crate_agree_on_instances() {
    for (schema, instances) in CASES {
        let parsed: Value = serde_json::from_str(schema).unwrap();
        let validator = validator(&parsed);
        let constraint = bytes(json_schema(schema).unwrap());
        let dense = bytes(Grammar::json_schema(schema, Whitespace::None).unwrap());
        let mut valid = 0;
        for text in *instances {
            let instance: Value = serde_json::from_str(text).unwrap();
            let expected = validator.is_valid(&instance);
            valid += usize::from(expected);
            // As it is, as Python writes it, and over several lines.
            let spaced = shohin_python(text);
            // Constants have only one spelling.
            let free = !schema.starts_with("{\"enum");
            let lines = format!("{instance:#}");
            for text in [spaced.as_str()].into_iter().chain([*text, &lines].into_iter().filter(|_| free)) {
                assert_eq!(takes(&constraint, text), expected, "{schema}: {text}");
            }
            assert_eq!(takes(&dense, &instance.to_string()), expected, "{schema}: {instance}");
        }
        assert!(valid > 0 && valid < instances.len() || *schema == "true" || *schema == "{}", "{schema}");
    }
}

/// A random regular expression.
fn expression(random: &mut Random, depth: usize) -> String {
    const PIECES: [&str; 16] = [
        "a", "b", "é", "-", r"\.", "[ab]", "[^a]", "[^b-é]", ".", r"\d", r"\w", r"\W", r"\s", r"\S",
        r"[\d_-]", r"\u00e9",
    ];
    if depth == 0 {
        return PIECES[random.below(PIECES.len())].into();
    }
    let inner = |random: &mut Random| expression(random, depth - 1);
    match random.below(9) {
        0 | 1 => inner(random) + &inner(random),
        2 => format!("(?:{}|{})", inner(random), inner(random)),
        3 => format!("({})*", inner(random)),
        4 => format!("({})?", inner(random)),
        5 => format!("(?:{}){{1,2}}", inner(random)),
        6 => format!("(^{}|{})", inner(random), inner(random)),
        7 => format!("({}|{}$)+?", inner(random), inner(random)),
        _ => format!("^{}$", inner(random)),
    }
}

#[test]
fn patterns_match_what_another_engine_matches() {
    let mut random = Random::new(6);
    let (mut matches, mut others) = (0, 0);
    for _ in 0..400 {
        let text = expression(&mut random, 3);
        let schema = serde_json::json!({ "type": "string", "pattern": text });
        let Ok(validator) = jsonschema::options().build(&schema) else { continue };
        // Possibly no string matches.
        let Ok(grammar) = json_schema(&schema.to_string()) else { continue };
        let constraint = bytes(grammar);
        for _ in 0..40 {
            let letters = ["a", "b", "é", "-", ".", "7", "_", " ", "日", "\""];
            let string: String = (0..random.below(6)).map(|_| letters[random.below(letters.len())]).collect();
            let instance = Value::String(string);
            let expected = validator.is_valid(&instance);
            assert_eq!(takes(&constraint, &instance.to_string()), expected, "{text}: {instance}");
            *if expected { &mut matches } else { &mut others } += 1;
        }
    }
    assert!(matches > 2000 && others > 2000, "{matches}, {others}");
}

fn json_schema(text: &str) -> shohin_core::Result<Grammar> {
    Grammar::json_schema(text, Whitespace::Allowed)
}

fn shohin_python(text: &str) -> String {
    let mut out = String::new();
    shohin_core::json::reformat(text, &mut out).unwrap();
    out
}

/// A constraint whose tokens are bytes.
fn bytes(grammar: Grammar) -> Constraint {
    let vocabulary = Vocabulary::from_texts((0..=255u8).map(Some), &[]);
    Constraint::new(grammar, Arc::new(vocabulary)).unwrap()
}

fn takes(constraint: &Constraint, text: &str) -> bool {
    let mut constraint = constraint.clone();
    text.bytes().all(|byte| constraint.accept(u32::from(byte))) && constraint.complete()
}

/// Single bytes, common JSON fragments, and halves of characters; the last token ends a reply.
fn pieces() -> (Vec<Vec<u8>>, u32) {
    let mut texts: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    texts.extend(
        [
            "{\"",
            "\":",
            "\": ",
            "\",",
            "\", \"",
            "\"}",
            "\"]",
            "}]",
            "]}",
            "}}",
            "]]",
            "],",
            "},",
            "[]",
            "{}",
            "[[",
            "[{",
            "\"\"",
            "\\\"",
            "\\n",
            "\\\\",
            "\\u",
            "\\u00",
            "  ",
            "    ",
            "\n  ",
            "\n",
            "{\n",
            ",\n",
            " \"",
            "true",
            "false",
            "null",
            "tr",
            "nu",
            "12",
            "123",
            "1234",
            "00",
            "0.",
            ".5",
            "e1",
            "e+",
            "-1",
            "-0",
            "name",
            "na",
            "me\"",
            "age",
            "value",
            "children",
            "kind",
            "circle",
            "square",
            "head",
            "next",
            "copy",
            "red",
            "green",
            "ab",
            "abc",
            "a\"",
            "hello",
            " world",
            "é",
            "🦙",
            "日本",
            "lorem ipsum dolor",
            "name\": \"",
            "{\"value\": 1",
            "state\": \"",
            "sku\":",
            "long one",
            "</",
            "<tool_call>",
        ]
        .map(|text| text.as_bytes().to_vec()),
    );
    texts.extend(
        [&[0xF0, 0x9F][..], &[0xA6, 0x99], &[0xC3], &[0xA9, b'"'], &[0xE6, 0x97], b"x\xC3", b"\"\xC3"]
            .map(<[u8]>::to_vec),
    );
    texts.push(Vec::new());
    let end = texts.len() as u32 - 1;
    (texts, end)
}

struct Words {
    texts: Vec<Vec<u8>>,
    ends: Vec<u32>,
    vocabulary: Arc<Vocabulary>,
}

/// Vocabularies of 350 and 2048 tokens.
fn vocabularies() -> [Words; 2] {
    let (texts, end) = pieces();
    let vocabulary = Arc::new(Vocabulary::from_texts(texts.iter().map(|t| t.iter().copied()), &[end]));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let file = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let of = |token| tokenizer.token_bytes(token).into_iter().flatten().collect();
    let sprout = Words {
        texts: (0..tokenizer.vocab_size() as u32).map(of).collect(),
        ends: tokenizer.ends().to_vec(),
        vocabulary: Arc::new(Vocabulary::new(&tokenizer)),
    };
    [Words { texts, ends: vec![end], vocabulary }, sprout]
}

/// The first of them without some bytes; longer tokens have these bytes all the same.
fn without(lacking: impl Fn(u8) -> bool) -> Words {
    let (mut texts, end) = pieces();
    texts.iter_mut().filter(|text| matches!(text[..], [byte] if lacking(byte))).for_each(Vec::clear);
    let vocabulary = Arc::new(Vocabulary::from_texts(texts.iter().map(|t| t.iter().copied()), &[end]));
    Words { texts, ends: vec![end], vocabulary }
}

/// As SmolLM2; without ways to go on in a character, and in many; without letters and without white space.
const LACKING: [fn(u8) -> bool; 5] = [
    |byte| matches!(byte, 0x04 | 0x06 | 0x13 | 0x14 | 0x16 | 0x1D | 0xF1 | 0xF2),
    |byte| matches!(byte, 0xA9 | 0xC2 | 0x9F),
    |byte| (0x80..0xC0).contains(&byte) && byte != 0xB0,
    |byte| matches!(byte, b'n' | b'b' | b'2' | b'\\' | 0xE6),
    |byte| byte <= b' ',
];

fn is_set(bits: &[u32], token: usize) -> bool {
    bits.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Chooses one of the allowed tokens; `taste` selects the preferred kind.
fn choose(bits: &[u32], words: &Words, random: &mut Random, taste: usize) -> Option<u32> {
    let tokens: Vec<u32> = (0..words.texts.len()).filter(|&t| is_set(bits, t)).map(|t| t as u32).collect();
    let closing =
        |&t: &u32| words.ends.contains(&t) || words.texts[t as usize].iter().any(|b| b"\"]},".contains(b));
    let preferred: Vec<u32> = match taste {
        1 => tokens.iter().copied().filter(closing).collect(),
        2 => tokens.iter().copied().filter(|t| !closing(t)).collect(),
        _ => Vec::new(),
    };
    let from = if preferred.is_empty() || random.below(4) == 0 { &tokens } else { &preferred };
    (!from.is_empty()).then(|| from[random.below(from.len())])
}

/// A reply of random tokens, at most `budget` including the one that ends it.
fn walk(
    constraint: &mut Constraint,
    words: &Words,
    random: &mut Random,
    budget: usize,
    taste: usize,
) -> Vec<u8> {
    let mut text = Vec::new();
    for left in (1..=budget).rev() {
        let token = choose(constraint.allowed(left), words, random, taste).expect("a token that may come");
        if words.ends.contains(&token) {
            assert!(constraint.complete());
            break;
        }
        assert!(constraint.accept(token), "token {token} behind {:?}", String::from_utf8_lossy(&text));
        text.extend(&words.texts[token as usize]);
        if constraint.finished() {
            break;
        }
    }
    assert!(constraint.complete(), "cut off after {:?}", String::from_utf8_lossy(&text));
    text
}

#[test]
fn whatever_tokens_are_chosen_the_text_is_valid() {
    let mut random = Random::new(1);
    let mut longest = 0;
    let rounds = if is_thorough() { 24 } else { 12 };
    for words in &vocabularies() {
        for ((schema, _), whitespace) in
            CASES.iter().zip([Whitespace::None, Whitespace::Allowed].iter().cycle())
        {
            let parsed: Value = serde_json::from_str(schema).unwrap();
            let validator = validator(&parsed);
            let grammar = Grammar::json_schema(schema, *whitespace).unwrap();
            let constraint = Constraint::new(grammar, words.vocabulary.clone()).unwrap();
            let least = constraint.shortest() as usize;
            for round in 0..rounds {
                // The smallest possible budget, and larger ones.
                let budget = if round < 6 { least + round } else { least + random.below(120) };
                let text = walk(&mut constraint.clone(), words, &mut random, budget.max(1), round % 3);
                longest = longest.max(text.len());
                let text = String::from_utf8(text).expect("UTF-8");
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {e}: {text}"));
                assert!(validator.is_valid(&value), "{schema}: {text}");
            }
        }
    }
    assert!(longest > 300, "{longest}");
}

/// Bytes without a token are in no text, and no text ends in front of one.
#[test]
fn a_vocabulary_may_lack_bytes() {
    let mut random = Random::new(8);
    let mut written = 0;
    for lacking in LACKING {
        let words = without(lacking);
        for (schema, instances) in CASES {
            let validator = validator(&serde_json::from_str(schema).unwrap());
            let grammar = Grammar::json_schema(schema, Whitespace::None).unwrap();
            let dense = bytes(grammar.clone());
            let constraint = match Constraint::new(grammar, words.vocabulary.clone()) {
                Ok(constraint) => constraint,
                Err(error) => {
                    assert_eq!(error.code(), "unsupported");
                    if error.to_string().contains("0x32") {
                        // Numbers need all digits.
                        continue;
                    }
                    let is_written = |text: &&str| !text.bytes().any(lacking) && takes(&dense, text);
                    assert_eq!(instances.iter().find(|text| is_written(text)), None, "{schema}: {error}");
                    continue;
                }
            };
            let least = constraint.shortest() as usize;
            for round in 0..12 {
                let budget = if round < 4 { least + round } else { least + random.below(80) };
                let text = walk(&mut constraint.clone(), &words, &mut random, budget.max(1), round % 3);
                assert!(!text.iter().any(|byte| lacking(*byte)), "{schema}: {text:?}");
                let text = String::from_utf8(text).expect("UTF-8");
                let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {e}: {text}"));
                assert!(validator.is_valid(&value), "{schema}: {text}");
                written += 1;
            }
        }
    }
    assert!(written > 2400, "{written}");
}

#[test]
fn only_what_can_be_written_is_chosen() {
    // A text, the tokens of a vocabulary beside single letters, and what can be written of it.
    let letters = |more: &[u8]| -> Arc<Vocabulary> {
        let texts = (b'a'..=b'z').map(|byte| vec![byte]).chain(more.iter().map(|byte| vec![*byte]));
        Arc::new(Vocabulary::from_texts(texts, &[]))
    };
    let choices = |texts: &[&str]| Grammar::choices(texts).unwrap();
    let gbnf = |text: &str| Grammar::gbnf(text).unwrap();
    let regex = |text: &str| Grammar::regex(text).unwrap();
    for (grammar, more, taken) in [
        // U+00E9 is 0xC3 0xA9; the first byte alone leads nowhere.
        (choices(&["né", "no", "é"]), &[0xC3][..], "no"),
        (choices(&["né", "no", "é"]), &[0xA9], "no"),
        (choices(&["né", "nu"]), &[0xC3, 0xA9], "né"),
        (regex("n(é|o)u?"), &[0xC3], "nou"),
        (regex("[é-ü]x|y+"), &[0xC3], "yyy"),
        // 0xC3 0xBC, at the other end of the class.
        (regex("[é-ü]x|y+"), &[0xC3, 0xBC], "üx"),
        (gbnf("root ::= \"a\" rest? end\nrest ::= \"é\" root | \"é\" rest \nend ::= \"z\""), &[0xC3], "az"),
        (gbnf("root ::= (word (\"é\" word)*)\nword ::= [a-d] word | [a-d]"), &[0xC3], "abcd"),
        (gbnf("root ::= a | b\na ::= \"x\" a \"é\" | \"é\"\nb ::= \"x\" b \"y\" | \"y\""), &[0xC3], "xxyyy"),
    ] {
        let mut constraint = Constraint::new(grammar.clone(), letters(more)).unwrap();
        let tokens: Vec<u8> = (b'a'..=b'z').chain(more.iter().copied()).collect();
        for byte in taken.bytes() {
            // Each token leads to a state that another leads on from, or that is complete.
            let allowed = constraint.allowed(usize::MAX).to_vec();
            for token in (0..tokens.len()).filter(|&token| is_set(&allowed, token)) {
                let mut after = constraint.clone();
                assert!(after.accept(token as u32));
                let goes_on = after.allowed(usize::MAX).iter().any(|word| *word != 0);
                assert!(after.complete() || goes_on, "{taken}: {:x}", tokens[token]);
            }
            let token = tokens.iter().position(|token| *token == byte).unwrap();
            assert!(is_set(&allowed, token), "{taken}: {byte:x}");
            assert!(constraint.accept(token as u32), "{taken}: {byte:x}");
        }
        assert!(constraint.complete(), "{taken}");
    }
    for (grammar, byte) in [
        (choices(&["né", "é"]), "0xC3"),
        (regex("n+é"), "0xC3"),
        (gbnf("root ::= \"a\" root | \"né\""), "0xC3"),
        (json_schema(r#"{"type":"object"}"#).unwrap(), "0x7B"),
    ] {
        let refused = Constraint::new(grammar, letters(&[0xA9])).unwrap_err();
        assert_eq!(refused.code(), "unsupported");
        let refused = refused.to_string();
        assert!(refused.starts_with(&format!("vocabulary is \"without byte {byte}\"")), "{refused}");
    }
}

/// A schema with some bytes changed, removed, repeated, or taken from another schema.
fn damaged(schema: &str, random: &mut Random) -> String {
    let mut bytes = schema.as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let other = CASES[random.below(CASES.len())].0.as_bytes();
        let from = random.below(other.len());
        match random.below(4) {
            0 => bytes[at] = b"0123456789\"[]{}:,.-+*?()^$|\\abe"[random.below(31)],
            1 => drop(bytes.drain(at..(at + random.below(8)).min(bytes.len()))),
            2 => drop(bytes.splice(at..at, other[from..(from + 30).min(other.len())].to_vec())),
            _ => bytes.extend_from_within(at..),
        }
        if bytes.is_empty() {
            return schema.into();
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn damaged_schemas_are_refused_or_kept_to() {
    let mut random = Random::new(7);
    let (texts, end) = pieces();
    let vocabulary = Arc::new(Vocabulary::from_texts(texts.iter().map(|t| t.iter().copied()), &[end]));
    let words = Words { texts, ends: vec![end], vocabulary };
    let mut kept = 0;
    for round in 0..800 {
        for (schema, _) in CASES {
            let schema = damaged(schema, &mut random);
            let Ok(grammar) = json_schema(&schema) else { continue };
            let Ok(constraint) = Constraint::new(grammar, words.vocabulary.clone()) else { continue };
            let least = constraint.shortest() as usize;
            if round % 4 > 0 || least > 300 {
                continue;
            }
            let text = walk(&mut constraint.clone(), &words, &mut random, least + 20, round / 4 % 3);
            let value: Value = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{schema}: {e}"));
            let parsed: Value = serde_json::from_str(&schema).unwrap();
            // The crate refuses some invalid patterns and references, or interprets them differently. Beside a pattern that no
            // string of the format matches, the format is an annotation.
            let formats = !schema.contains("pattern");
            if let Ok(validator) = jsonschema::options().should_validate_formats(formats).build(&parsed) {
                assert!(validator.is_valid(&value), "{schema}: {value}");
                kept += 1;
            }
        }
    }
    assert!(kept > 80, "{kept}");
}

const TOOLS: [&str; 3] = [
    r#"{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false}}}"#,
    r#"{"name":"add_note","parameters":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}"#,
    r#"{"name":"now"}"#,
];

/// All grammars under test, by name.
fn grammars() -> Vec<(&'static str, Grammar)> {
    let schemas = CASES.iter().map(|(schema, _)| (*schema, json_schema(schema).unwrap()));
    let calls = |required| Grammar::tool_calls(&TOOLS, required).unwrap();
    let others = [
        ("an object", Grammar::json_object(Whitespace::Allowed)),
        ("thoughts and a number", json_schema(r#"{"type":"integer"}"#).unwrap().after_thoughts().unwrap()),
        ("calls", calls(false)),
        ("required calls", calls(true)),
        ("thoughts and calls", calls(false).after_thoughts().unwrap()),
        ("thoughts and required calls", calls(true).after_thoughts().unwrap()),
    ];
    schemas.chain(others).collect()
}

/// Checks each call of a reply against its tool's schema; returns the number of calls.
fn check_calls(text: &str) -> usize {
    let reply = Reply::parse(text);
    for call in &reply.calls {
        let value: Value = serde_json::from_str(call).unwrap_or_else(|e| panic!("{e}: {call}"));
        let (name, arguments) = Reply::call(call).unwrap();
        assert_eq!(value["name"], name);
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        let schema = TOOLS.iter().find_map(|tool| {
            let tool: Value = serde_json::from_str(tool).unwrap();
            let tool = tool.get("function").unwrap_or(&tool).clone();
            (tool["name"] == name).then(|| tool.get("parameters").cloned().unwrap_or(Value::Bool(true)))
        });
        let validator = validator(&schema.expect("a tool of that name"));
        assert!(arguments.is_object() && validator.is_valid(&arguments), "{call}");
    }
    reply.calls.len()
}

#[test]
fn every_call_fits_its_tool() {
    let mut random = Random::new(3);
    let mut calls = [0; 2];
    let rounds = if is_thorough() { 60 } else { 20 };
    for words in &vocabularies() {
        for (required, thinks) in [(false, false), (true, false), (false, true), (true, true)] {
            let grammar = Grammar::tool_calls(&TOOLS, required).unwrap();
            let grammar = if thinks { grammar.after_thoughts().unwrap() } else { grammar };
            let constraint = Constraint::new(grammar, words.vocabulary.clone()).unwrap();
            for round in 0..rounds {
                let budget = constraint.shortest() as usize + random.below(200);
                let text = walk(&mut constraint.clone(), words, &mut random, budget.max(1), round % 3);
                let found = check_calls(&String::from_utf8_lossy(&text));
                assert!(found > 0 || !required, "{}", String::from_utf8_lossy(&text));
                calls[usize::from(required)] += found;
            }
        }
    }
    // Random bytes rarely spell the marker by themselves.
    assert!(calls[0] > 0 && calls[1] >= 4 * rounds, "{calls:?}");
}

#[test]
fn tokens_take_memory_only_the_first_time() {
    let [words, _] = vocabularies();
    for (name, grammar) in grammars() {
        let mut constraint = Constraint::new(grammar, words.vocabulary.clone()).unwrap();
        let logits = vec![0.0; words.texts.len()];
        let budget = constraint.shortest() as usize + 100;
        let (mut calls, mut taken) = (0, 0);
        let mut random = Random::new(4);
        for left in (1..=budget).rev() {
            constraint.apply(&logits, left, &[]);
            let token = choose(constraint.allowed(left), &words, &mut random, 2).unwrap();
            if words.ends.contains(&token) || constraint.finished() {
                break;
            }
            let (accepted, again) = measure(|| {
                constraint.apply(&logits, left, &[]);
                constraint.accept(token)
            });
            assert!(accepted);
            (calls, taken) = (calls + again.calls, taken + 1);
        }
        // Stacks and names may still grow.
        assert!(calls <= 16, "{name}: {calls} times in {taken} tokens");
    }
}

/// The reply of a model to a message, as a host computes it.
fn reply(
    file: &[u8],
    grammar: Grammar,
    tools: &[&str],
    sampler: &SamplerConfig,
    max: usize,
) -> (String, Reason) {
    let gguf = Gguf::parse(file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = Template::from_metadata(gguf.metadata(), &tokenizer).unwrap();
    let messages = [Message::new(Role::User, "Hi!")];
    let options = ChatOptions { template, tools, thinking: Some(false), ..ChatOptions::default() };
    let prompt = chat::encode(&tokenizer, &messages, &options).unwrap();
    let mut device = shohin_tests::cpu::device(file, &CpuOptions::default()).unwrap();
    let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
    let sampler = Sampler::new(sampler, device.model().config().vocab_size).unwrap();
    let options = GenerationOptions { max_tokens: max, ..GenerationOptions::default() };
    let mut generation = Generation::new(&prompt, 0, session.capacity(), sampler, options).unwrap();
    let constraint = Constraint::new(grammar, Arc::new(Vocabulary::new(&tokenizer))).unwrap();
    let possible = constraint.shortest() as usize <= max;
    generation.constrain(constraint);
    let mut text = String::new();
    let mut decoder = Decoder { device: &mut device, session: &mut session };
    let reason = drive(&mut generation, &mut decoder, &tokenizer, &mut |step| {
        if let Event::Token(event) = step {
            text.push_str(event.text);
        }
        ControlFlow::Continue(())
    });
    let reason = reason.unwrap();
    let whole = possible || reason != Reason::Length;
    (if whole { text } else { String::new() }, reason)
}

#[test]
fn models_keep_to_schemas_whatever_room_they_have() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let sprout = std::fs::read(path).unwrap();
    let tiny =
        Model::new(Shape { context: 1024, ..Shape::tiny() }, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let hot = SamplerConfig { temperature: 3.0, top_k: 0, seed: 5, ..SamplerConfig::greedy() };
    let mut checked = 0;
    for file in [&sprout, &tiny] {
        for (schema, _) in CASES.iter().rev().step_by(4) {
            let parsed: Value = serde_json::from_str(schema).unwrap();
            let validator = validator(&parsed);
            for (config, max) in
                [(SamplerConfig::greedy(), 80), (SamplerConfig::bonsai(), 30), (hot, 50), (hot, 4)]
            {
                let (text, _) = reply(file, json_schema(schema).unwrap(), &[], &config, max);
                if !text.is_empty() {
                    let value =
                        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {e}: {text}"));
                    assert!(validator.is_valid(&value), "{schema}: {text}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 40, "{checked}");
    for (required, max) in [(false, 200), (true, 200), (true, 90)] {
        let grammar = Grammar::tool_calls(&TOOLS, required).unwrap();
        let (text, reason) = reply(&tiny, grammar, &TOOLS, &hot, max);
        assert!(check_calls(&text) > 0 || !required, "{text}");
        assert!(matches!(reason, Reason::Stop | Reason::Length), "{reason:?}");
    }
}

#[test]
fn the_tokens_that_may_come_are_those_that_a_try_finds() {
    let mut random = Random::new(2);
    let mut tried = 0;
    let steps = if is_thorough() { 12 } else { 4 };
    for words in vocabularies().iter().chain(&LACKING.map(without)) {
        for (schema, grammar) in grammars() {
            let Ok(mut constraint) = Constraint::new(grammar, words.vocabulary.clone()) else { continue };
            let fresh = constraint.clone();
            let mut left = constraint.shortest() as usize + 12;
            for _ in 0..steps {
                let shortest = constraint.shortest();
                // What each token that is accepted leaves to say at least.
                let tries = words.texts.iter().enumerate().map(|(token, text)| {
                    let mut after = constraint.clone();
                    (!text.is_empty() && after.accept(token as u32)).then(|| after.shortest() as usize)
                });
                let tries: Vec<_> = tries.collect();
                let nearest = tries.iter().flatten().min();
                assert!(shortest == 0 || nearest.is_some_and(|after| *after < shortest as usize), "{schema}");
                for left in [usize::MAX, left, shortest as usize + 2, shortest as usize + 1] {
                    let allowed = constraint.allowed(left).to_vec();
                    for (token, text) in words.texts.iter().enumerate() {
                        let expected = if words.ends.contains(&(token as u32)) {
                            constraint.complete()
                        } else {
                            tries[token].is_some_and(|after| {
                                left.saturating_sub(2).max(shortest.saturating_sub(1) as usize) >= after
                            })
                        };
                        tried += 1;
                        assert_eq!(
                            is_set(&allowed, token),
                            expected,
                            "{schema}: token {:?}, {left} left",
                            String::from_utf8_lossy(text)
                        );
                    }
                }
                let token = choose(constraint.allowed(left), words, &mut random, 0);
                match token {
                    Some(token) if !words.ends.contains(&token) && !constraint.finished() && left > 1 => {
                        assert!(constraint.accept(token));
                        left -= 1;
                    }
                    _ => {
                        constraint = fresh.clone();
                        left = constraint.shortest() as usize + 1 + random.below(40);
                    }
                }
            }
        }
    }
    assert!(tried > 1_000_000, "{tried}");
}

/// Tokens of one byte first, then as many as Qwen3 has.
fn many_tokens() -> Vec<Vec<u8>> {
    let spelled = shohin_tests::vocabulary::Vocabulary::synthetic(QWEN3, 1).tokens;
    let merged = spelled.iter().skip(256).map(|token| token.replace('\u{120}', " ").into_bytes());
    (0..=255).map(|byte| vec![byte]).chain(merged).collect()
}

#[test]
fn many_open_patterns_cost_no_more_than_a_few() {
    let texts = many_tokens();
    let end = texts.len() as u32 - 1;
    let vocabulary = Arc::new(Vocabulary::from_texts(texts.iter().map(|text| text.iter().copied()), &[end]));
    for (n, bytes_only) in [(4, false), (256, true)] {
        let pattern = |i: u32| {
            let other = char::from_u32(0x4E00 + i).unwrap();
            format!(r#"{{"type":"string","pattern":"^[^{other}]*b{{{}}}$"}}"#, i % 12 + 1)
        };
        let patterns: Vec<String> = (0..n).map(pattern).collect();
        let schema = format!(r#"{{"anyOf":[{}]}}"#, patterns.join(","));
        let mut constraint = Constraint::new(json_schema(&schema).unwrap(), vocabulary.clone()).unwrap();
        assert!(constraint.accept(u32::from(b'"')));
        let allowed = constraint.allowed(usize::MAX).to_vec();
        let tokens = || (0..texts.len()).filter(|&token| is_set(&allowed, token));
        assert!(tokens().count() > 100);
        assert_eq!(tokens().all(|token| texts[token].len() == 1), bytes_only, "{n} patterns");
        for byte in *b"ab\"" {
            assert!(is_set(constraint.allowed(usize::MAX), byte.into()));
            assert!(constraint.accept(byte.into()));
        }
        assert!(constraint.finished());
    }
}
