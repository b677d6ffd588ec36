//! Stop strings in a text that comes in pieces.

/// Looks for stop strings. Text that could be the beginning of one is held back.
#[derive(Clone, Debug, Default)]
pub(super) struct StopFinder {
    stops: Vec<String>,
    held: String,
}

/// What may be said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// This, and more may follow.
    Text(String),
    /// This, and a stop string followed it.
    Last(String),
}

impl StopFinder {
    /// Looks for these; empty ones are not looked for.
    pub(super) fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Adds text. The stop string that ends first counts; of several such, the one that begins first. O(held × stops).
    pub(super) fn push(&mut self, text: &str) -> Said {
        if self.stops.is_empty() {
            return Said::Text(text.to_owned());
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|s| self.held.find(s.as_str()).map(|at| (at + s.len(), at)));
        if let Some((_, at)) = found.min() {
            let said = self.held[..at].to_owned();
            self.held.clear();
            return Said::Last(said);
        }
        let begins = |at: &usize| self.stops.iter().any(|s| s.starts_with(&self.held[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest);
        let ends = self.held.char_indices().map(|(at, _)| at).filter(|&at| at >= first);
        let keep_from = ends.into_iter().find(begins).unwrap_or(self.held.len());
        let kept = self.held.split_off(keep_from);
        Said::Text(std::mem::replace(&mut self.held, kept))
    }

    /// What was held back, where nothing follows.
    pub(super) fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, StopFinder};

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut finder = StopFinder::new(&stops);
        let mut said = String::new();
        for piece in pieces {
            match finder.push(piece) {
                Said::Text(text) => said += &text,
                Said::Last(text) => return (said + &text, true),
            }
        }
        (said + &finder.finish(), false)
    }

    /// However a text is cut into pieces, what is said ends before the stop string that ends first.
    #[test]
    fn cuts_do_not_matter_to_stop_strings() {
        let text = "aabaabaaab ä→b aab";
        let chars: Vec<char> = text.chars().collect();
        for stops in [&["aaab"][..], &["aab", "ba"], &["→"], &["b a", " ä"], &["zzz", "b aabx"], &["abaa", "ba"], &[]]
        {
            let first = stops.iter().filter_map(|s| text.find(s).map(|at| (at + s.len(), at))).min().map(|(_, at)| at);
            let expected = (text[..first.unwrap_or(text.len())].to_owned(), first.is_some());
            for cuts in 0u32..1 << (chars.len() - 1) {
                if cuts % 97 != 0 {
                    continue;
                }
                let mut pieces = vec![String::new()];
                for (i, c) in chars.iter().enumerate() {
                    if i > 0 && cuts >> (i - 1) & 1 == 1 {
                        pieces.push(String::new());
                    }
                    pieces.last_mut().unwrap().push(*c);
                }
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                assert_eq!(run(stops, &pieces), expected, "{stops:?} in {pieces:?}");
            }
        }
    }
}
