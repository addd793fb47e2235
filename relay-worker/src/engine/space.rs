//! The namespace and its devices as read from the database, kept in memory between events. Every change goes to the
//! database first; when that fails, the memory is dropped and read anew.

use std::collections::{BTreeMap, HashMap};

use skald_common::ids::Ed25519Public;

use super::conn::AGENT;
use super::push::Device;
use super::queue::Queue;
use super::{ConnId, Engine};
use crate::store::{Member, Namespace, Sql, SqlError, Standing};

/// Member numbers stay below this, so that the keys of the queue stay below 2^53. There are never as many members.
const MAX_NUMBER: u32 = 1 << 21;

/// What has been read.
#[derive(Default)]
pub(super) struct Cache {
    space: Known,
    queues: HashMap<u32, Queue>,
    /// What is remembered of each device's pushes.
    pub(super) pushes: Option<BTreeMap<u32, Device>>,
}

#[cfg(test)]
impl Cache {
    /// How many queues are remembered, and how many entries the longest has.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let longest = self.queues.values().map(Queue::len).max().unwrap_or(0);
        (self.queues.len() as u64, longest as u64)
    }
}

/// What is known of the namespace.
#[derive(Default)]
enum Known {
    #[default]
    Unread,
    /// There is none here.
    Nothing,
    Space(Space),
}

impl Known {
    const fn space(&self) -> Option<&Space> {
        match self {
            Self::Space(space) => Some(space),
            Self::Unread | Self::Nothing => None,
        }
    }
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) row: Namespace,
    pub(super) members: Vec<Member>,
}

impl Space {
    pub(super) fn device(&self, key: &Ed25519Public) -> Option<&Member> {
        self.members.iter().find(|member| member.key == *key)
    }

    /// The number of the agent or of an authorized device.
    pub(super) fn number_of(&self, key: &Ed25519Public) -> Option<u32> {
        if self.row.agent == *key {
            return Some(AGENT);
        }
        self.device(key).filter(|member| member.standing == Standing::Authorized).map(|member| member.no)
    }

    pub(super) fn pending(&self) -> Vec<Member> {
        let mut pending: Vec<_> =
            self.members.iter().filter(|member| member.standing == Standing::Pending).cloned().collect();
        pending.sort_by_key(|member| (member.paired_at, member.no));
        pending
    }

    pub(super) fn authorized(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.standing == Standing::Authorized)
    }

    /// The lowest free number. One may come again after its device is gone: its queue went with it.
    pub(super) fn next_number(&self) -> u32 {
        (AGENT + 1..MAX_NUMBER).find(|no| self.members.iter().all(|member| member.no != *no)).unwrap_or(MAX_NUMBER)
    }

    /// Puts a device in the place of the one with its number.
    pub(super) fn put(&mut self, member: Member) {
        self.members.retain(|other| other.no != member.no);
        self.members.push(member);
    }
}

impl<S: Sql> Engine<S> {
    /// The namespace, read if need be; `None` while there is none.
    pub(super) fn space(&mut self) -> Result<Option<&Space>, SqlError> {
        if matches!(self.cache.space, Known::Unread) {
            let row = if self.store.exists()? { self.store.namespace()? } else { None };
            self.cache.space = match row {
                Some(row) => Known::Space(Space { row, members: self.store.members()? }),
                None => Known::Nothing,
            };
        }
        Ok(self.known_space())
    }

    /// The namespace if it has been read.
    pub(super) fn known_space(&self) -> Option<&Space> {
        self.cache.space.space()
    }

    /// The namespace is now `space`, in the database too.
    pub(super) fn set_space(&mut self, space: Space) {
        self.cache.space = Known::Space(space);
    }

    /// Everything has been deleted.
    pub(super) fn forget_everything(&mut self) {
        self.cache = Cache { space: Known::Nothing, queues: HashMap::new(), pushes: Some(BTreeMap::new()) };
    }

    /// Changes the namespace's row; writes nothing if that changes nothing.
    pub(super) fn change_row(&mut self, change: impl FnOnce(&mut Namespace)) -> Result<(), SqlError> {
        let Some(before) = self.space()?.map(|space| &space.row) else { return Ok(()) };
        let mut row = before.clone();
        change(&mut row);
        if row != *before {
            self.store.put_namespace(&row)?;
            if let Known::Space(space) = &mut self.cache.space {
                space.row = row;
            }
        }
        Ok(())
    }

    /// A member's queue, its index read if need be.
    pub(super) fn queue(&mut self, member: u32) -> Result<&mut Queue, SqlError> {
        let queue = match self.cache.queues.remove(&member) {
            Some(queue) => queue,
            None => Queue::new(self.store.queue(member)?),
        };
        Ok(self.cache.queues.entry(member).or_insert(queue))
    }

    /// The queues have changed behind the index.
    pub(super) fn forget_queues(&mut self) {
        self.cache.queues.clear();
    }

    /// A member's queue is gone, and what was to be pushed of it.
    pub(super) fn forget_queue(&mut self, member: u32) {
        self.cache.queues.remove(&member);
        if let Some(pushes) = &mut self.cache.pushes {
            pushes.remove(&member);
        }
    }

    /// Deletes the messages of a member's queue up to `last`, included.
    pub(super) fn delete_up_to(&mut self, member: u32, last: u32) -> Result<(), SqlError> {
        if self.queue(member)?.first().is_some_and(|first| first <= last) {
            self.store.dequeue(member, 0, last)?;
            self.queue(member)?.remove_up_to(last);
        }
        Ok(())
    }

    /// After a restore: a session whose member has been revoked, or whose namespace is gone, is none.
    pub(super) fn strangers(&mut self) -> Result<Vec<ConnId>, SqlError> {
        if self.online.is_empty() {
            return Ok(Vec::new());
        }
        self.space()?;
        let space = self.known_space();
        let belongs = |id: &ConnId| {
            self.session(*id)
                .is_some_and(|session| space.and_then(|space| space.number_of(&session.key)) == Some(session.member))
        };
        Ok(self.online.values().copied().filter(|id| !belongs(id)).collect())
    }
}
