//! A WebSocket client that costs next to nothing: blocking, one buffer, frames that were masked beforehand. It knows just
//! enough to put load on a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Longer than any answer takes; a test of load that hangs is to end with an error.
const PATIENCE: Duration = Duration::from_secs(30);
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
/// A buffer's first size, bytes.
const ROOM: usize = 4096;
/// Where a frame's length goes on in two, or eight, more bytes.
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What of the buffer has been given out …
    taken: usize,
    /// … and up to where it holds what has come.
    filled: usize,
}

/// Writes on a connection that is read elsewhere.
#[derive(Debug)]
pub(crate) struct Sender(TcpStream);

impl Sender {
    /// As [`Wire::send`].
    pub(crate) fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        self.0.write_all(frames).context("the server does not read")
    }
}

/// Where the payload of a frame lies behind its beginning.
struct Span {
    opcode: u8,
    start: usize,
    end: usize,
}

impl Wire {
    /// Opens `path` at a server.
    pub(crate) fn open(server: SocketAddr, path: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(server).context("no connection")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut wire = Self { stream, buffer: vec![0; ROOM], taken: 0, filled: 0 };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: c2thbGQtYmVuY2gtbG9hZA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        wire.stream.write_all(request.as_bytes())?;
        let end = loop {
            if let Some(at) = wire.buffer[..wire.filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            wire.read()?;
        };
        let head = String::from_utf8_lossy(&wire.buffer[..end]).into_owned();
        ensure!(head.starts_with("HTTP/1.1 101"), "{path}: no upgrade: {head}");
        wire.taken = end;
        Ok(wire)
    }

    /// Writes what [`masked`] has made: one frame, or several.
    pub(crate) fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(frames).context("the server does not read")
    }

    /// The sending half by itself, for another thread.
    pub(crate) fn split(self) -> anyhow::Result<(Sender, Self)> {
        Ok((Sender(self.stream.try_clone()?), self))
    }

    /// The payload of the next binary message.
    pub(crate) fn next(&mut self) -> anyhow::Result<&[u8]> {
        loop {
            let Some(span) = self.whole()? else {
                self.read()?;
                continue;
            };
            self.taken += span.end;
            match span.opcode {
                BINARY => {
                    let frame = self.taken - span.end;
                    return Ok(&self.buffer[frame + span.start..frame + span.end]);
                }
                CLOSE => bail!("the server has closed the connection"),
                _ => {}
            }
        }
    }

    /// Whether [`Self::next`] would not wait.
    pub(crate) fn has_next(&self) -> anyhow::Result<bool> {
        Ok(self.whole()?.is_some())
    }

    /// The frame at the beginning of what is not given out yet, if all of it is here.
    fn whole(&self) -> anyhow::Result<Option<Span>> {
        let bytes = &self.buffer[self.taken..self.filled];
        let (Some(&opcode), Some(&short)) = (bytes.first(), bytes.get(1)) else { return Ok(None) };
        let (start, length) = match short {
            LENGTH_16 => (4, bytes.get(2..4).map(|n| n.iter().fold(0, |all, &byte| all << 8 | usize::from(byte)))),
            LENGTH_64 => (10, bytes.get(2..10).map(|n| n.iter().fold(0, |all, &byte| all << 8 | usize::from(byte)))),
            short => {
                ensure!(short < LENGTH_16, "a masked frame from the server");
                (2, Some(usize::from(short)))
            }
        };
        let Some(end) = length.map(|length| start + length) else { return Ok(None) };
        Ok((bytes.len() >= end).then_some(Span { opcode, start, end }))
    }

    fn read(&mut self) -> anyhow::Result<()> {
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        let count = self.stream.read(&mut self.buffer[self.filled..]).context("the server is silent")?;
        ensure!(count > 0, "the server has ended the connection");
        self.filled += count;
        Ok(())
    }
}

/// A binary message as a client sends it. The mask is zero, so that the payload stays as it is.
pub(crate) fn masked(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![BINARY];
    let length = payload.len();
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < LENGTH_16 => frame.push(0x80 | short),
        (_, Ok(middle)) => {
            frame.push(0x80 | LENGTH_16);
            frame.extend(middle.to_be_bytes());
        }
        _ => {
            frame.push(0x80 | LENGTH_64);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend_from_slice(payload);
    frame
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that takes the upgrade and then writes `bytes` in pieces of `size`.
    fn served(bytes: Vec<u8>, size: usize) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 2048]).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap();
            for piece in bytes.chunks(size) {
                stream.write_all(piece).unwrap();
            }
        });
        Wire::open(address, "/").unwrap()
    }

    /// The same as a server sends it.
    fn unmasked(payload: &[u8]) -> Vec<u8> {
        let mut frame = masked(payload);
        frame[1] &= 0x7f;
        let mask = frame.len() - payload.len() - 4;
        frame.drain(mask..mask + 4);
        frame
    }

    #[test]
    fn messages_of_every_length_come_whole_however_they_are_cut() {
        let payloads = [vec![1; 5], vec![2; 125], vec![3; 126], vec![4; 300], vec![5; 70_000]];
        for size in [1, 7, 1000, 1_000_000] {
            let bytes = payloads.iter().flat_map(|payload| [unmasked(payload), vec![0x8a, 0]].concat()).collect();
            let mut wire = served(bytes, size);
            for payload in &payloads {
                assert_eq!(wire.next().unwrap(), payload);
            }
            assert!(wire.next().is_err(), "the end is an error");
        }
    }

    #[test]
    fn a_close_and_a_refused_upgrade_are_errors() {
        assert!(served(vec![CLOSE, 0], 2).next().unwrap_err().to_string().contains("closed"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 2048]).unwrap();
            stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap();
        });
        assert!(Wire::open(address, "/").unwrap_err().to_string().contains("404"));
    }
}
