//! What was measured: a table for people, JSON for programs, and the aims beside.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    sections: Vec<Section>,
    aims: Vec<Aim>,
}

/// Lines that are to be compared.
#[derive(Debug)]
pub(crate) struct Section {
    name: &'static str,
    title: String,
    lines: Vec<Line>,
}

/// What was measured of one thing.
#[derive(Debug)]
pub(crate) struct Line {
    name: String,
    figures: Vec<(&'static str, f64)>,
}

/// What a number is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// At least.
    AtLeast(f64),
    /// Less than.
    Below(f64),
}

#[derive(Debug)]
struct Aim {
    what: String,
    unit: &'static str,
    value: f64,
    bound: Bound,
}

impl Section {
    /// An empty one; `name` for programs.
    pub(crate) fn new(name: &'static str, title: impl Into<String>) -> Self {
        Self { name, title: title.into(), lines: Vec::new() }
    }

    /// Adds a line; figures that are no numbers are left out.
    pub(crate) fn line(&mut self, name: impl Into<String>, figures: &[(&'static str, f64)]) {
        let figures = figures.iter().copied().filter(|(_, value)| value.is_finite()).collect();
        self.lines.push(Line { name: name.into(), figures });
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        for (key, _) in self.lines.iter().flat_map(|line| &line.figures) {
            if !columns.contains(key) {
                columns.push(*key);
            }
        }
        columns
    }

    fn table(&self) -> String {
        let columns = self.columns();
        let head = std::iter::once(String::new()).chain(columns.iter().map(|key| heading(key))).collect();
        let rows = self.lines.iter().map(|line| {
            let cell =
                |key: &&str| line.figures.iter().find(|(k, _)| k == key).map_or(String::new(), |(_, n)| number(*n));
            std::iter::once(line.name.clone()).chain(columns.iter().map(cell)).collect()
        });
        format!("{}\n{}", self.title, aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
    }
}

impl Aim {
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::Below(bound) => self.value < bound,
        }
    }

    fn row(&self) -> Vec<String> {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::Below(bound) => ("<", bound),
        };
        let verdict = if self.is_met() { "met" } else { "missed" };
        vec![
            self.what.clone(),
            format!("{} {}", number(self.value), self.unit),
            format!("{sign} {} {}", number(bound), self.unit),
            verdict.to_owned(),
        ]
    }
}

impl Report {
    /// Shows a section at once, and keeps it.
    pub(crate) fn add(&mut self, section: Section) {
        println!("\n{}", section.table());
        self.sections.push(section);
    }

    /// A number that the project aims for.
    pub(crate) fn aim(&mut self, what: impl Into<String>, value: f64, unit: &'static str, bound: Bound) {
        self.aims.push(Aim { what: what.into(), unit, value, bound });
    }

    /// The aims, for people.
    pub(crate) fn aims_table(&self) -> Option<String> {
        let head = ["", "measured", "aim", ""].map(str::to_owned).to_vec();
        let rows: Vec<_> = std::iter::once(head).chain(self.aims.iter().map(Aim::row)).collect();
        (rows.len() > 1).then(|| format!("Aims\n{}", aligned(&rows)))
    }

    /// Everything, for programs.
    pub(crate) fn json(&self, machine: &Value) -> Value {
        let mut sections = Map::new();
        for section in &self.sections {
            let lines: Vec<Value> = section
                .lines
                .iter()
                .map(|line| {
                    let mut object = Map::from_iter([("name".to_owned(), Value::from(line.name.as_str()))]);
                    object.extend(line.figures.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))));
                    Value::Object(object)
                })
                .collect();
            sections.insert(section.name.to_owned(), lines.into());
        }
        let aims: Vec<Value> = self
            .aims
            .iter()
            .map(|aim| {
                let (kind, bound) = match aim.bound {
                    Bound::AtLeast(bound) => ("at_least", bound),
                    Bound::Below(bound) => ("below", bound),
                };
                json!({"what": aim.what, "value": aim.value, "unit": aim.unit, kind: bound, "met": aim.is_met()})
            })
            .collect();
        json!({"machine": machine, "sections": sections, "aims": aims})
    }
}

/// `p50_us` as a heading: `p50 µs`.
fn heading(key: &str) -> String {
    key.replace("_us", " µs").replace("_ms", " ms").replace("_kib", " KiB").replace("_pct", " %").replace('_', " ")
}

/// Three digits that matter, and no more.
fn number(value: f64) -> String {
    let decimals = if value.abs() >= 100.0 || value.fract() == 0.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && digit.is_ascii_digit() && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// Rows in columns: the first to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_table_with_a_column_for_every_figure() {
        let mut section = Section::new("x", "Title");
        section.line("ours", &[("p50_us", 90.04), ("per_second", 10_251.4)]);
        section.line("theirs", &[("p50_us", 1_234_567.0), ("of_pct", f64::NAN), ("cpu_us", 1.5)]);
        let expected = "\
Title
             p50 µs  per second  cpu µs
  ours         90.0      10,251
  theirs  1,234,567                1.50
";
        assert_eq!(section.table(), expected);
    }

    #[test]
    fn aims_say_whether_they_are_met_and_programs_get_everything() {
        let mut report = Report::default();
        assert!(report.aims_table().is_none());
        report.aim("fast", 0.95, "ms", Bound::Below(0.9));
        report.aim("many", 2500.0, "a second", Bound::AtLeast(2400.0));
        let mut section = Section::new("x", "Title");
        section.line("ours", &[("p50_us", 90.5)]);
        report.add(section);
        let table = report.aims_table().unwrap();
        assert!(table.contains("0.95 ms") && table.contains("< 0.90 ms"), "{table}");
        assert!(table.lines().nth(2).unwrap().ends_with("missed"), "{table}");
        assert!(table.lines().nth(3).unwrap().ends_with("  met"), "{table}");
        let json = report.json(&json!({"cores": 2}));
        assert_eq!(json["sections"]["x"][0], json!({"name": "ours", "p50_us": 90.5}));
        assert_eq!(json["aims"][0], json!({"what": "fast", "value": 0.95, "unit": "ms", "below": 0.9, "met": false}));
        assert_eq!(json["machine"]["cores"], 2);
    }
}
