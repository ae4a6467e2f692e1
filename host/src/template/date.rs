//! Dates as Python's `strftime` writes them in the C locale.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Year, month and day, each from 1, of a day counted from 1970 on; as in the proleptic Gregorian calendar.
fn date(day: i64) -> (i64, usize, i64) {
    // Years begin with March, so that a leap day is the last, and eras of 400 years with that of the year 0.
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let first = (153 * month + 2) / 5;
    let calendar = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(calendar <= 2), calendar as usize, of_year - first + 1)
}

/// Writes the time of so many seconds since 1970 (UTC). The error is a letter that is not supported.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, char> {
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, of_month) = date(day);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = (day + 3).rem_euclid(7) as usize;
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[weekday]);
    let begins = (0..400).find(|back| date(day - back).0 < year).unwrap_or(1);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = chars.next().unwrap_or('%');
        let bare = letter == '-';
        if bare {
            letter = chars.next().unwrap_or('-');
        }
        let number = |value: i64, width: usize| match bare {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        out.push_str(&match letter {
            'Y' => year.to_string(),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month as i64, 2),
            'd' => number(of_month, 2),
            'e' => format!("{of_month:2}"),
            'j' => number(begins, 3),
            'B' => month_name.into(),
            'b' | 'h' => month_name[..3].into(),
            'A' => day_name.into(),
            'a' => day_name[..3].into(),
            'u' => (weekday + 1).to_string(),
            'w' => ((weekday + 1) % 7).to_string(),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(second % 60, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'F' => format!("{year}-{month:02}-{of_month:02}"),
            'T' => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            'D' => format!("{month:02}/{of_month:02}/{:02}", year.rem_euclid(100)),
            'Z' => "UTC".into(),
            'z' => "+0000".into(),
            '%' => "%".into(),
            other => return Err(other),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    /// From Python's `datetime.fromtimestamp(seconds, timezone.utc).strftime(format)`.
    #[test]
    fn dates_are_those_of_python() {
        let format = "%Y %y %m %d %B %b %A %a %H %I %M %S %p %j %u %w %-d %-m %F %T %%";
        for (seconds, text) in [
            (0, "1970 70 01 01 January Jan Thursday Thu 00 12 00 00 AM 001 4 4 1 1 1970-01-01 00:00:00 %"),
            (
                951_782_399,
                "2000 00 02 28 February Feb Monday Mon 23 11 59 59 PM 059 1 1 28 2 2000-02-28 23:59:59 %",
            ),
            (
                951_782_400,
                "2000 00 02 29 February Feb Tuesday Tue 00 12 00 00 AM 060 2 2 29 2 2000-02-29 00:00:00 %",
            ),
            (
                1_735_689_599,
                "2024 24 12 31 December Dec Tuesday Tue 23 11 59 59 PM 366 2 2 31 12 2024-12-31 23:59:59 %",
            ),
            (
                4_107_542_400,
                "2100 00 03 01 March Mar Monday Mon 00 12 00 00 AM 060 1 1 1 3 2100-03-01 00:00:00 %",
            ),
        ] {
            assert_eq!(strftime(format, seconds).as_deref(), Ok(text));
        }
        assert_eq!(strftime("%Q", 0), Err('Q'));
    }
}
