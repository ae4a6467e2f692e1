//! Charts of losses: in the terminal, and as an SVG file.

use plotters::prelude::{
    BLUE, ChartBuilder, Circle, Color, IntoDrawingArea, IntoFont, LineSeries, RED, SVGBackend, WHITE,
};
use plotters::style::BLACK;
use std::io::{self, Write};
use std::path::Path;
use textplots::{Chart, Plot, Shape};

/// Losses by step.
type Losses<'l> = &'l [(u64, f64)];

/// The smallest and the largest of numbers, apart from each other.
fn range(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = numbers.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    if low < high { (low, high) } else { (low - 0.5, low + 0.5) }
}

/// Draws the losses of steps; nothing for fewer than two.
pub(super) fn terminal(out: &mut impl Write, losses: Losses<'_>, valid: Losses<'_>) -> io::Result<()> {
    let points = |losses: Losses<'_>| losses.iter().map(|(x, y)| (*x as f32, *y as f32)).collect::<Vec<_>>();
    let (Some((first, _)), Some((last, _))) = (losses.first(), losses.last()) else { return Ok(()) };
    if first == last {
        return Ok(());
    }
    let (losses, valid) = (points(losses), points(valid));
    let mut chart = Chart::new(120, 40, *first as f32, *last as f32);
    let (lines, marks) = (Shape::Lines(&losses), Shape::Points(&valid));
    let chart = chart.lineplot(&lines).lineplot(&marks);
    chart.axis();
    chart.figures();
    writeln!(out, "{chart}")
}

/// Writes a chart: the losses of steps as a line, those of validation as another.
pub(super) fn svg(path: &Path, losses: Losses<'_>, valid: Losses<'_>) -> Result<(), String> {
    let mut text = String::new();
    draw(&mut text, losses, valid).map_err(|error| error.to_string())?;
    std::fs::write(path, text).map_err(|error| error.to_string())
}

fn draw(text: &mut String, losses: Losses<'_>, valid: Losses<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let all = losses.iter().chain(valid);
    let (first, last) = range(all.clone().map(|(step, _)| *step as f64));
    let (low, high) = range(all.map(|(_, loss)| *loss));
    let root = SVGBackend::with_string(text, (800, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption("Loss", ("sans-serif", 18).into_font())
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(first..last, low..high)?;
    let whole = |step: &f64| format!("{step:.0}");
    chart.configure_mesh().x_desc("step").y_desc("nats per token").x_label_formatter(&whole).draw()?;
    let points = |losses: Losses<'_>| losses.iter().map(|(x, y)| (*x as f64, *y)).collect::<Vec<_>>();
    chart
        .draw_series(LineSeries::new(points(losses), &BLUE))?
        .label("training")
        .legend(|(x, y)| plotters::prelude::PathElement::new([(x, y), (x + 16, y)], BLUE));
    if !valid.is_empty() {
        chart
            .draw_series(LineSeries::new(points(valid), &RED))?
            .label("validation")
            .legend(|(x, y)| plotters::prelude::PathElement::new([(x, y), (x + 16, y)], RED));
        // It is measured at these steps alone.
        chart.draw_series(points(valid).into_iter().map(|point| Circle::new(point, 4, RED.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_every_loss() {
        let losses: Vec<(u64, f64)> = (1..50).map(|step| (step, 4.0 / step as f64)).collect();
        let mut text = String::new();
        draw(&mut text, &losses, &[(1, 3.5), (49, 1.0)]).unwrap();
        assert!(text.starts_with("<svg") && text.contains("validation") && text.ends_with("</svg>\n"));
        let line = text.split("<polyline").find(|part| part.contains("#0000FF")).unwrap();
        assert!(line.split(' ').filter(|word| word.contains(',')).count() >= 49, "{line}");
        let mut out = Vec::new();
        terminal(&mut out, &losses, &[]).unwrap();
        assert!(String::from_utf8(out).unwrap().lines().count() > 5);
        terminal(&mut Vec::new(), &losses[..1], &[]).unwrap();
    }
}
