//! Which of some texts is closest to a question: `cargo run --release --example embeddings [MODEL.gguf]`.

use shohin::{Model, Result};

/// Texts with their similarity to a question, the closest first.
pub(crate) fn rank<'t>(model: &Model, question: &str, texts: &[&'t str]) -> Result<Vec<(f32, &'t str)>> {
    // All of length 1, so that the similarity is the sum of products.
    let question = model.embed(question)?;
    let mut ranked = Vec::new();
    for (text, vector) in texts.iter().zip(model.embeddings(texts, model.pooling()?, true)?) {
        ranked.push((question.iter().zip(vector?).map(|(a, b)| a * b).sum(), *text));
    }
    ranked.sort_by(|a: &(f32, _), b| b.0.total_cmp(&a.0));
    Ok(ranked)
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    let texts = ["A cow says moo.", "The sky is blue.", "Two and two are four."];
    for (similarity, text) in rank(&model, "What does a cow say?", &texts)? {
        println!("{similarity:.3} {text}");
    }
    Ok(())
}
