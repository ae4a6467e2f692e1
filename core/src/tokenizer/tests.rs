use super::vocab::Index;
use super::*;
use crate::Error;
use alloc::format;
use alloc::string::String;
use alloc::vec;

/// A vocabulary in GGUF's layout, in parts so that tests can break each of them.
struct Built {
    pre: String,
    tokens: Vec<Vec<u8>>,
    merges: Vec<Vec<u8>>,
    types: Option<Vec<i32>>,
    eos: Option<u32>,
}

fn packed(texts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    }
    out
}

impl Built {
    /// All bytes, the results of `merges` in order, `<|im_end|>` (control) and `<think>` (user-defined).
    fn new(merges: &[&str]) -> Built {
        let mut tokens: Vec<Vec<u8>> =
            (0..=255).map(|b| String::from(alphabet::spell(b)).into_bytes()).collect();
        tokens.extend(merges.iter().map(|m| m.replace(' ', "").into_bytes()));
        let mut types = vec![1; tokens.len()];
        tokens.extend([b"<|im_end|>".to_vec(), b"<think>".to_vec()]);
        types.extend([3, 4]);
        let merges = merges.iter().map(|m| m.as_bytes().to_vec()).collect();
        Built { pre: "qwen2".into(), tokens, merges, types: Some(types), eos: None }
    }

    fn with<T>(&self, use_it: impl FnOnce(Result<Tokenizer<'_>>) -> T) -> T {
        let (tokens, merges) = (packed(&self.tokens), packed(&self.merges));
        let types: Option<Vec<u8>> =
            self.types.as_ref().map(|t| t.iter().flat_map(|v| v.to_le_bytes()).collect());
        use_it(Tokenizer::new(&Vocabulary {
            pre: &self.pre,
            tokens: &tokens,
            token_count: self.tokens.len(),
            merges: &merges,
            merge_count: self.merges.len(),
            scores: None,
            types: types.as_deref(),
            bos: None,
            eos: self.eos,
            eot: None,
            eom: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
        }))
    }

    fn error(&self) -> Error {
        self.with(|t| t.err()).expect("an error")
    }

    fn ids(&self, text: &str, special: Special) -> Vec<u32> {
        self.with(|t| {
            let mut out = Vec::new();
            t.unwrap().encode(text, special, &mut out);
            out
        })
    }
}

/// The definition of byte-pair encoding: merge the lowest rank, leftmost first, until no merge applies.
fn naive(t: &Tokenizer, merges: &[Vec<u8>], piece: &[u8]) -> Vec<u32> {
    let mut words: Vec<String> = piece.iter().map(|b| String::from(alphabet::spell(*b))).collect();
    loop {
        let best = (0..words.len().saturating_sub(1))
            .filter_map(|i| {
                let pair = format!("{} {}", words[i], words[i + 1]);
                merges.iter().position(|m| *m == pair.as_bytes()).map(|rank| (rank, i))
            })
            .min();
        let Some((_, i)) = best else { break };
        let right = words.remove(i + 1);
        words[i].push_str(&right);
    }
    words.iter().map(|w| (0..).find(|id| t.token_text(*id) == Some(w.as_bytes())).unwrap()).collect()
}

const MERGES_ABC: [&str; 8] = ["a b", "b c", "c c", "ab c", "a a", "aa aa", "bc c", "abc cc"];

#[test]
fn merging_is_that_of_the_definition() {
    let built = Built::new(&MERGES_ABC);
    built.with(|t| {
        let t = t.unwrap();
        let mut state = 1u32;
        for len in 0..200 {
            let text: String = (0..len % 40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ['a', 'b', 'c'][(state >> 24) as usize % 3]
                })
                .collect();
            let mut ids = Vec::new();
            t.encode(&text, Special::Text, &mut ids);
            assert_eq!(ids, naive(&t, &built.merges, text.as_bytes()), "{text}");
        }
    });
}

#[test]
fn long_pieces_take_n_log_n_steps() {
    // Doubling merges: the worst case for the number of merges.
    let mut merges = Vec::new();
    let mut word = String::from("a");
    for _ in 0..8 {
        merges.push(format!("{word} {word}"));
        word = format!("{word}{word}");
    }
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    Built::new(&merges).with(|t| {
        let t = t.unwrap();
        for text in ["a".repeat(2_000_000), "ab".repeat(200_000), "aab".repeat(100_000)] {
            let mut buffers = EncodeBuffers::default();
            let mut ids = Vec::new();
            t.encode_plain(&text, &EncodeOptions::default(), &mut buffers, &mut ids);
            assert!(buffers.merger.queued <= 3 * text.len() as u64, "{}", buffers.merger.queued);
            assert_eq!(ids.iter().flat_map(|id| t.token_bytes(*id).unwrap()).count(), text.len());
        }
    });
}

#[test]
fn text_forms_no_added_token_unless_asked() {
    let built = Built::new(&["< |"]);
    let (im_end, think) = (257, 258);
    for text in ["<|im_end|>", "<think>", "<|im_end|><think>", "a<|im_end|>"] {
        let ids = built.ids(text, Special::Text);
        assert!(!ids.contains(&im_end) && !ids.contains(&think), "{text}");
    }
    assert_eq!(built.ids("<|im_end|><think>", Special::Parse), [im_end, think]);
    let user = built.ids("<|im_end|><think>", Special::UserDefined);
    assert_eq!(user.last(), Some(&think));
    assert!(!user.contains(&im_end));
    assert_eq!(built.ids("<<think><|im_end|", Special::Parse)[..2], [u32::from(b'<'), think]);
}

#[test]
fn llama_bpe_keeps_whole_tokens_but_no_added_ones() {
    let mut built = Built::new(&["a b", "c d"]);
    built.tokens.extend(["abcd", "Ġabc", "dcba"].map(|t| t.as_bytes().to_vec()));
    built.types.as_mut().unwrap().extend([1, 1, 4]);
    assert_eq!(built.ids("abcd abc", Special::Text).len(), 5);
    built.pre = "llama-bpe".into();
    assert_eq!(built.ids("abcd abc", Special::Text), [260, 261]);
    assert_eq!(built.ids("dcba abcdabcd", Special::Text).len(), 9);
    assert_eq!(built.ids("dcba", Special::UserDefined), [262]);
}

#[test]
fn merges_into_added_tokens_are_left_out() {
    let mut built = Built::new(&["x y", "xy z", "xyz z"]);
    assert_eq!(built.ids("xyzz", Special::Text), [258]);
    built.types.as_mut().unwrap()[257] = 3;
    assert_eq!(built.ids("xyzz", Special::Text), [256, u32::from(b'z'), u32::from(b'z')]);
    assert_eq!(built.ids("xyzz", Special::Parse), [257, u32::from(b'z')]);

    // The names of ChatML are control tokens in a file without types, too.
    let mut built = Built::new(&[]);
    built.types = None;
    built.with(|t| assert_eq!(t.unwrap().kind(256), TokenKind::Control));
}

#[test]
fn the_longest_added_token_wins() {
    let mut built = Built::new(&[]);
    built.tokens.extend([b"<think>>".to_vec(), b"<th".to_vec(), "é<".into()]);
    built.types.as_mut().unwrap().extend([4, 4, 4]);
    assert_eq!(built.ids("<think>>", Special::Parse), [258]);
    assert_eq!(built.ids("<think>", Special::Parse), [257]);
    assert_eq!(built.ids("<thinx", Special::Parse)[0], 259);
    assert_eq!(built.ids("é<think>", Special::Parse)[0], 260);
}

/// The leftmost added token, the longest there, and so on: by trying all of them everywhere.
fn tried_everywhere(text: &str, tokens: &[(u32, Vec<u8>)]) -> Vec<(usize, usize, u32)> {
    let (text, mut found, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < text.len() {
        let here = tokens.iter().filter(|(_, token)| text[at..].starts_with(token));
        match here.max_by_key(|(_, token)| token.len()) {
            Some((id, token)) => {
                found.push((at, token.len(), *id));
                at += token.len();
            }
            None => at += 1,
        }
    }
    found
}

#[test]
fn added_tokens_are_found_as_by_trying_all_everywhere() {
    let mut state = 7u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for _ in 0..300 {
        let mut built = Built::new(&[]);
        let mut word = |most: u64| -> String {
            (0..=below(most)).map(|_| ['a', 'b', 'é', '中'][below(4) as usize]).collect()
        };
        for _ in 0..6 {
            let token = word(4).into_bytes();
            if token.len() > 1 && !built.tokens.contains(&token) {
                built.tokens.push(token);
                built.types.as_mut().unwrap().push(if built.tokens.len().is_multiple_of(3) { 3 } else { 4 });
            }
        }
        let text: String = (0..40).map(|_| word(6)).collect();
        built.with(|t| {
            let t = t.unwrap();
            for special in [Special::Text, Special::UserDefined, Special::Parse] {
                let allowed = |kind| match special {
                    Special::Text => false,
                    Special::UserDefined => kind == TokenKind::UserDefined,
                    Special::Parse => kind != TokenKind::Normal,
                };
                let tokens: Vec<(u32, Vec<u8>)> = (0..t.vocab_size() as u32)
                    .filter(|id| allowed(t.kind(*id)))
                    .map(|id| (id, t.token_text(id).unwrap().to_vec()))
                    .collect();
                let found: Vec<_> = t.added.matches(text.as_bytes(), special).collect();
                assert_eq!(found, tried_everywhere(&text, &tokens), "{text:?}");
            }
        });
    }
}

#[test]
fn a_hostile_vocabulary_does_not_make_long_texts_slow() {
    // Each is tried at every offset of the text, and fails at its last byte.
    let mut built = Built::new(&[]);
    for n in [4095, 4000, 2000, 1000, 1] {
        built.tokens.push([&vec![b'a'; n][..], b"b"].concat());
        built.types.as_mut().unwrap().push(4);
    }
    built.with(|t| {
        let t = t.unwrap();
        let text = "a".repeat(300_000) + "b" + &"a".repeat(70_000) + "ab";
        let found: Vec<_> = t.added.matches(text.as_bytes(), Special::Parse).collect();
        assert_eq!(found, [(300_000 - 4095, 4096, 258), (300_001 + 70_001 - 4095, 4096, 258)]);
    });
    let mut built = Built::new(&[]);
    for i in 0..300 {
        built.tokens.push(format!("{i:04}").repeat(1000).into_bytes());
        built.types.as_mut().unwrap().push(4);
    }
    let most = 1 << 20;
    assert!(matches!(built.error(), Error::Limit { what: "bytes of added tokens", max, .. } if max == most));
}

#[test]
fn an_added_token_of_more_than_65535_bytes_is_refused() {
    // Files have a lower limit.
    let added = |bytes: usize| {
        let tokens = packed(&[vec![b'a'; bytes]]);
        let added = Added::new(&Texts::new(&tokens, 1, "token", 1 << 20)?, |_| 4)?;
        Ok::<_, Error>(added.matches("a".repeat(bytes).as_bytes(), Special::Parse).collect::<Vec<_>>())
    };
    assert_eq!(added(65_535).unwrap(), [(0, 65_535, 0)]);
    let (what, max) = ("bytes of an added token", 65_535);
    assert_eq!(added(65_536), Err(Error::Limit { what, found: 65_536, max }));
}

#[test]
fn broken_vocabularies_are_refused_by_name() {
    let good = || Built::new(&["a b"]);

    let mut b = good();
    b.pre = "gpt-4".into();
    assert_eq!(
        format!("{}", b.error()),
        "tokenizer.ggml.pre is \"gpt-4\", which is not supported; expected qwen2, qwen35, smollm, llama-bpe, smaug-bpe or gpt-2"
    );

    let mut b = good();
    b.tokens.push(b"ab".to_vec());
    b.types.as_mut().unwrap().push(1);
    assert_eq!(b.error(), error!(Duplicate { what: "token", name: Name::new("ab") }));

    let mut b = good();
    b.tokens[256] = vec![b'x'; 1 << 20];
    assert_eq!(b.error(), error!(Limit { what: "token", found: 1 << 20, max: Limits::DEFAULT.token }));

    let mut b = good();
    b.types.as_mut().unwrap().pop();
    assert_eq!(b.error(), error!(Length { what: TYPES, expected: 259, found: 258 }));

    // An id outside the vocabulary matters only where texts begin or end with it.
    let mut b = good();
    b.eos = Some(259);
    assert_eq!(b.with(|t| t.unwrap().eos()), None);

    let mut b = good();
    b.tokens[usize::from(b'a')] = b"xyz".to_vec();
    assert_eq!(b.error().code(), "unsupported");

    for (byte, may_lack) in
        [(0x04, true), (0x7F, true), (0xC0, true), (0xF2, true), (0x0A, false), (0xC2, false), (0xF3, false)]
    {
        let mut b = good();
        b.tokens[byte] = vec![];
        assert_eq!(b.with(|t| t.is_ok()), may_lack, "{byte:x}");
    }

    for merge in ["b a", "a q", "zz b", "ab", "", " ", "a ", " b", "a  b", "a b c"] {
        let mut b = good();
        b.merges = vec![merge.into()];
        assert_eq!(b.error().code(), "unsupported", "{merge:?}");
    }
}

#[test]
fn arrays_that_end_early_are_refused() {
    let built = Built::new(&["a b"]);
    let (tokens, merges) = (packed(&built.tokens), packed(&built.merges));
    let source = Vocabulary {
        pre: "qwen2",
        tokens: &tokens,
        token_count: built.tokens.len(),
        merges: &merges,
        merge_count: 1,
        scores: None,
        types: None,
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
    };
    assert!(Tokenizer::new(&source).is_ok());
    let id = source.token_count as u32;
    for (bos, eos) in [(Some(id), None), (None, Some(id))] {
        let unused = Vocabulary { bos, eos, add_bos: false, add_eos: false, ..source };
        assert_eq!(Tokenizer::new(&unused).map(|t| (t.bos(), t.eos())).unwrap(), (None, None));
        let used = Vocabulary { add_bos: true, add_eos: true, ..unused };
        assert_eq!(Tokenizer::new(&used).unwrap_err(), error!(Token { id, vocab: id }));
    }
    for cut in [0, 1, 7, 8, 9, tokens.len() - 1] {
        let short = Vocabulary { tokens: &tokens[..cut], ..source };
        assert_eq!(Tokenizer::new(&short).unwrap_err().code(), "truncated", "{cut}");
    }
    for (count, code) in [(1 << 21, "limit"), (1 << 20, "truncated"), (usize::MAX, "limit")] {
        let long = Vocabulary { token_count: count, ..source };
        assert_eq!(Tokenizer::new(&long).unwrap_err().code(), code, "{count}");
    }
    for count in [2, 1 << 30, usize::MAX] {
        let long = Vocabulary { merge_count: count, ..source };
        assert!(Tokenizer::new(&long).is_err(), "{count}");
    }
    let mut huge = tokens.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Tokenizer::new(&Vocabulary { tokens: &huge, ..source }).is_err());
}

#[test]
fn empty_tokens_and_repeated_merges_are_harmless() {
    let mut built = Built::new(&["a b", "b c"]);
    built.merges.push(b"a b".to_vec()); // would come after `b c`
    built.tokens.extend([vec![], vec![]]);
    built.types.as_mut().unwrap().extend([1, 3]);
    let (ab, c) = (256, u32::from(b'c'));
    assert_eq!(built.ids("abc", Special::Parse), [ab, c]);
    built.with(|t| {
        let t = t.unwrap();
        assert_eq!(t.token_bytes(260).unwrap().count(), 0);
        assert_eq!(t.id_of(b""), None);
        assert!(t.token_bytes(262).is_none());
        assert_eq!((t.id_of(b"ab"), t.id_of(b"<think>"), t.id_of(b"nope")), (Some(256), Some(259), None));
    });
}

#[test]
fn a_vocabulary_made_to_collide_is_refused_in_bounded_time() {
    // 60,000 tokens whose hashes fall into a few slots are hard to construct; a table without room to probe
    // is not.
    let built = Built::new(&[]);
    let tokens = packed(&built.tokens);
    let texts = Texts::new(&tokens, built.tokens.len(), "token", 100).unwrap();
    let mut index = Index::new(&texts, 0).unwrap();
    let found = (0..100_000).find_map(|_| index.find([b"absent", b""]).err());
    assert_eq!(found.map(|e| e.code()), Some("limit"));
}

#[test]
fn decoding_is_lossy_conversion_of_the_whole() {
    let mut built = Built::new(&["a b"]);
    // Two tokens that end inside a character, one whose bytes are never valid UTF-8.
    let spell = |bytes: &[u8]| bytes.iter().map(|b| alphabet::spell(*b)).collect::<String>().into_bytes();
    built.tokens.extend([spell(b"x\xF0\x9F"), spell(b"\xA6\x99y\xC3"), spell(b"\xFF\xC0")]);
    built.types.as_mut().unwrap().extend([1, 1, 1]);
    built.with(|t| {
        let t = t.unwrap();
        let mut state = 7u32;
        for round in 0..3000 {
            let ids: Vec<u32> = (0..round % 12)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let pick = state >> 16;
                    if pick.is_multiple_of(3) {
                        259 + pick / 3 % 3
                    } else {
                        [0xF0, 0x9F, 0xA6, 0x99, 0xED, 0xA0, 0x80, 0x41, 257, 258, 999][pick as usize % 11]
                    }
                })
                .collect();
            let mut bytes = Vec::new();
            let mut decoder = Decoder::new(&t);
            let mut text = String::new();
            let capacity = decoder_capacity(&decoder);
            for id in &ids {
                if t.kind(*id) != TokenKind::Control {
                    bytes.extend(t.token_bytes(*id).into_iter().flatten());
                }
                text.push_str(decoder.push(*id));
            }
            text.push_str(decoder.finish());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{ids:?}");
            assert_eq!(decoder_capacity(&decoder), capacity);
        }
        let mut shown = Decoder::new(&t).show_control(true);
        assert_eq!((Decoder::new(&t).push(257), shown.push(257)), ("", "<|im_end|>"));
    });
}

fn decoder_capacity(decoder: &Decoder<'_, '_>) -> usize {
    decoder.text_capacity()
}
