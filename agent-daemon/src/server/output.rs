//! Lines on their way out of a connection: written as the other side takes them, never waited for.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::time::Instant;

use crate::rpc::SecretBuf;

/// How long the other side may take nothing at all before the connection is cut.
const PATIENCE: Duration = Duration::from_secs(30);

/// Above so many bytes we take no new work for this connection.
const FULL: usize = 1024 * 1024;

/// Events that may wait; with one more the subscriber is cut off.
const MOST_EVENTS: usize = 256;

/// The queue of a connection, and where it goes.
#[derive(Debug)]
pub(super) struct Output {
    stream: OwnedWriteHalf,
    queue: VecDeque<Line>,
    /// Of the first line, how many bytes are written.
    written: usize,
    bytes: usize,
    events: usize,
    last_progress: Instant,
}

#[derive(Debug)]
struct Line {
    bytes: SecretBuf,
    is_event: bool,
}

impl Output {
    pub(super) fn new(stream: OwnedWriteHalf) -> Self {
        Self { stream, queue: VecDeque::new(), written: 0, bytes: 0, events: 0, last_progress: Instant::now() }
    }

    /// Queues an answer or a call.
    pub(super) fn push(&mut self, bytes: SecretBuf) {
        self.enqueue(Line { bytes, is_event: false });
    }

    /// Queues an event; `Err` with the number of lost ones, this among them, if the subscriber is too slow.
    pub(super) fn push_event(&mut self, bytes: SecretBuf) -> Result<(), usize> {
        if self.events >= MOST_EVENTS {
            return Err(self.drop_events() + 1);
        }
        self.events += 1;
        self.enqueue(Line { bytes, is_event: true });
        Ok(())
    }

    /// Forgets the events that wait, except one that is partly written; how many.
    pub(super) fn drop_events(&mut self) -> usize {
        let before = self.queue.len();
        let started = self.written > 0;
        let mut index = 0;
        self.queue.retain(|line| {
            let keep = !line.is_event || (index == 0 && started);
            index += 1;
            keep
        });
        self.bytes = self.queue.iter().map(|line| line.bytes.len()).sum::<usize>() - self.written;
        self.events = self.queue.iter().filter(|line| line.is_event).count();
        before - self.queue.len()
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether so much waits that no new work should be taken.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= FULL
    }

    /// When the other side has been patient-tested enough; far off while nothing waits.
    pub(super) fn give_up_at(&self) -> Option<Instant> {
        (!self.is_empty()).then(|| self.last_progress + PATIENCE)
    }

    /// Writes some of what waits. Cancel safe: what was written is accounted for before it returns.
    pub(super) async fn write_some(&mut self) -> io::Result<()> {
        let Some(line) = self.queue.front() else { return Ok(()) };
        let count = self.stream.write(&line.bytes[self.written..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += count;
        self.bytes -= count;
        self.last_progress = Instant::now();
        if self.written == line.bytes.len() {
            self.written = 0;
            self.events -= usize::from(line.is_event);
            self.queue.pop_front();
        }
        Ok(())
    }

    fn enqueue(&mut self, line: Line) {
        if self.queue.is_empty() {
            self.last_progress = Instant::now();
        }
        self.bytes += line.bytes.len();
        self.queue.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    use super::*;

    fn line(text: &str) -> SecretBuf {
        let mut line = SecretBuf::new();
        line.extend(text.as_bytes());
        line
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_its_events_and_keeps_its_answers() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut output = Output::new(ours.into_split().1);
        output.push(line("answer\n"));
        for _ in 0..MOST_EVENTS {
            output.push_event(line("event\n")).unwrap();
        }
        assert_eq!(output.push_event(line("event\n")), Err(MOST_EVENTS + 1));
        output.push(line("lagged\n"));
        while !output.is_empty() {
            output.write_some().await.unwrap();
        }
        assert_eq!((output.bytes, output.events), (0, 0));
        drop(output);
        let mut text = String::new();
        theirs.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "answer\nlagged\n");
    }

    #[tokio::test]
    async fn an_event_that_is_partly_written_is_finished() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut output = Output::new(ours.into_split().1);
        let long = format!("{}\n", "x".repeat(8 * 1024 * 1024));
        output.push_event(line(&long)).unwrap();
        output.push_event(line("event\n")).unwrap();
        output.write_some().await.unwrap();
        assert!(output.is_full() && output.written > 0);
        assert_eq!(output.drop_events(), 1);
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.unwrap();
            text
        });
        while !output.is_empty() {
            output.write_some().await.unwrap();
        }
        assert!(output.give_up_at().is_none());
        drop(output);
        assert_eq!(reading.await.unwrap(), long);
    }
}
