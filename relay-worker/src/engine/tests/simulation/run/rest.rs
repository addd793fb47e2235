//! The end of a run: everything comes to rest.

use skald_common::wire::Features;

use super::super::history::{PEERS, Route};
use super::super::{DAY, Verdict, demand};
use super::Run;

impl Run {
    /// Everybody comes back, reads and acknowledges everything; then the relay must want nothing any more.
    pub(super) fn rest(&mut self) -> Verdict {
        self.pass(1000)?;
        self.connect(0, Features::ALL, Route::Front)?;
        self.has_list = true;
        self.send_list()?;
        for peer in self.oracle.authorized().collect::<Vec<_>>() {
            self.connect(peer, Features::ALL, Route::Direct)?;
        }
        self.reap()?;
        let mut quiet = 0;
        while quiet < 3 {
            quiet += 1;
            for peer in 0..PEERS {
                let Some(conn) = self.conn(peer) else { continue };
                while self.platform.socket(conn).is_some_and(|socket| !socket.inbox.is_empty()) {
                    self.hear(peer);
                    quiet = 0;
                }
                self.acknowledge(peer)?;
            }
            self.pass(100)?;
        }
        self.oracle.check_nothing_lost()?;
        let rows = self.platform.queued_rows();
        demand!(rows == 0, "what is acknowledged is deleted", "{rows} rows");
        while let Some(conn) = self.platform.abandoned() {
            self.ended(conn, 1006)?;
        }
        // The agent's budget fills up, the last handshakes and pairings are over.
        self.open_pipe()?;
        self.pass(3 * DAY)?;
        self.ask_presence(0)?;
        self.reap()?;
        self.check_idle()
    }

    fn check_idle(&mut self) -> Verdict {
        let written = self.platform.sql.rows_written();
        demand!(self.platform.timer.is_none(), "an idle namespace asks for no timer", "{:?}", self.platform.timer);
        self.evict();
        self.woken = [0; 2];
        self.pass(20 * DAY)?;
        let rows = self.platform.sql.rows_written() - written;
        let few = self.woken[0] == 0 && self.woken[1] <= 1 && rows <= 1;
        demand!(few, "an idle namespace is woken for nothing but its end", "{:?}, {rows} rows", self.woken);
        let matched = self.oracle.open_sides();
        demand!(matched >= 2 || !self.list[1..].contains(&true), "an idle pipe needs nobody's attention", "{matched}");
        let connected = (0..PEERS).filter(|peer| self.list[*peer] || *peer == 0);
        let all = connected.into_iter().all(|peer| self.conn(peer).is_some_and(|conn| self.platform.alive(conn)));
        demand!(all, "an idle connection lives", "");
        Ok(())
    }
}
