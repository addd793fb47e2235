//! A disk that can be told to refuse, to crash around a write, and to lose what nobody was promised: a model of the
//! [`Store`], and [`Disk::twin`], which runs the real one beside it and compares.

use std::cell::RefCell;
use std::rc::Rc;

use skald_common::ids::Ed25519Public;

use super::{Crash, demand};
use crate::core;
use crate::hub::api::DeviceState;
use crate::hub::durable::{Backup, Durable, Origin, Write};
use crate::hub::tests::names;
use crate::store::{BACKUP, DATABASE, Store, StoreError};

/// What the disk does to the next writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Trouble {
    #[default]
    Over,
    /// So many are refused.
    Refuse(u8),
    /// The process dies at the write after so many, which is not made.
    CrashBefore(u8),
    /// The same, but it is made, and nothing that hangs on it happens.
    CrashAfter(u8),
}

/// The shared end: the daemon's [`core::Disk`], and the tests' grip on it.
#[derive(Clone)]
pub(super) struct Disk(Rc<RefCell<Model>>);

pub(super) struct Model {
    pub(super) durable: Durable,
    /// What a power cut leaves.
    synced: Durable,
    generation: u64,
    backup: Option<Saved>,
    pub(super) trouble: Trouble,
    /// Devices that were authorized, each time that one was.
    pub(super) let_in: Vec<Ed25519Public>,
    /// When a write was refused last, on the world's monotonic clock.
    pub(super) refused_at: Option<u64>,
    /// The world's monotonic clock.
    mono: u64,
    /// Lists of writes that were made so far.
    pub(super) made: u64,
    twin: Option<(tempfile::TempDir, Option<Store>)>,
}

#[derive(Clone)]
struct Saved {
    generation: u64,
    content: Backup,
}

/// What becomes of the files while the daemon is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Nothing,
    /// Everything since the last write that somebody was promised.
    PowerCut,
    Database,
    /// And the backup beside it.
    Both,
}

fn empty() -> Durable {
    Durable {
        origin: Origin::Normal,
        high_water: 0,
        devices: Vec::new(),
        items: Vec::new(),
        sights: Vec::new(),
        answers: Vec::new(),
        decided: Vec::new(),
        window: None,
    }
}

impl Disk {
    /// A new identity's.
    pub(super) fn model() -> Self {
        let (durable, synced) = (empty(), empty());
        let mut model = Model {
            durable,
            synced,
            generation: 0,
            backup: None,
            trouble: Trouble::Over,
            let_in: Vec::new(),
            refused_at: None,
            mono: 0,
            made: 0,
            twin: None,
        };
        model.save_backup();
        Self(Rc::new(RefCell::new(model)))
    }

    /// The same, with a real database that must agree after every step.
    pub(super) fn twin(unix: u64) -> Self {
        let disk = Self::model();
        let folder = tempfile::tempdir().unwrap();
        let opened = Store::open(folder.path(), names().namespace, true, unix).unwrap();
        disk.0.borrow_mut().twin = Some((folder, Some(opened.store)));
        disk.0.borrow().compare();
        disk
    }

    pub(super) fn get(&self) -> std::cell::Ref<'_, Model> {
        self.0.borrow()
    }

    /// Nothing is left that knows the marks of counters, if the database goes.
    pub(super) fn has_backup(&self) -> bool {
        self.0.borrow().backup.is_some()
    }

    pub(super) fn time(&self, mono: u64) {
        self.0.borrow_mut().mono = mono;
    }

    pub(super) fn trouble(&self, trouble: Trouble) {
        self.0.borrow_mut().trouble = trouble;
    }

    /// The daemon is down: what happens to its files, and what it finds when it starts again.
    pub(super) fn reopen(&self, loss: Loss, unix: u64) -> Durable {
        let mut model = self.0.borrow_mut();
        // A power cut needs a machine of its own.
        let loss = if model.twin.is_some() && loss == Loss::PowerCut { Loss::Nothing } else { loss };
        model.made += 1;
        model.trouble = Trouble::Over;
        model.lose(loss);
        model.open();
        model.reopen_twin(loss, unix);
        model.compare();
        model.durable.clone()
    }
}

impl core::Disk for Disk {
    fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut model = self.0.borrow_mut();
        let crash = match model.trouble {
            Trouble::Over => None,
            Trouble::Refuse(left) => {
                model.trouble = if left > 1 { Trouble::Refuse(left - 1) } else { Trouble::Over };
                model.refused_at = Some(model.mono);
                let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
                return Err(StoreError::Database(rusqlite::Error::SqliteFailure(full, None)));
            }
            Trouble::CrashBefore(0) | Trouble::CrashAfter(0) => Some(std::mem::take(&mut model.trouble)),
            Trouble::CrashBefore(left) => {
                model.trouble = Trouble::CrashBefore(left - 1);
                None
            }
            Trouble::CrashAfter(left) => {
                model.trouble = Trouble::CrashAfter(left - 1);
                None
            }
        };
        if !matches!(crash, Some(Trouble::CrashBefore(_))) {
            model.apply(writes);
        }
        drop(model);
        if crash.is_some() {
            Crash::now();
        }
        Ok(())
    }

    fn load(&self) -> Result<Durable, StoreError> {
        Ok(self.0.borrow().durable.clone())
    }

    fn read_backup(&self) -> Option<Backup> {
        self.0.borrow().backup.as_ref().map(|saved| saved.content.clone())
    }
}

impl Model {
    fn apply(&mut self, writes: &[Write]) {
        self.made += 1;
        for write in writes {
            if let Write::PutDevice(row) = write
                && row.state == DeviceState::Authorized
            {
                let known = self.durable.devices.iter().find(|known| known.ed25519 == row.ed25519);
                if known.is_none_or(|known| known.state == DeviceState::Pending) {
                    self.let_in.push(row.ed25519);
                }
            }
            apply(&mut self.durable, write);
        }
        let backed_up = writes.iter().any(Write::is_backed_up);
        self.generation += u64::from(backed_up);
        if writes.iter().any(Write::is_promise) {
            self.synced = self.durable.clone();
        }
        if backed_up {
            self.save_backup();
        }
        if let Some((_, store)) = &mut self.twin {
            store.as_mut().unwrap().apply(writes).unwrap();
            self.compare();
        }
    }

    fn save_backup(&mut self) {
        if self.durable.origin != Origin::Lost {
            let mut devices = self.durable.devices.clone();
            for device in &mut devices {
                // Not kept: when it was last seen, and what it shows.
                (device.last_seen, device.stale) = (None, true);
            }
            let content = Backup { high_water: self.durable.high_water, devices };
            self.backup = Some(Saved { generation: self.generation, content });
        }
    }

    fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Nothing => {}
            Loss::PowerCut => self.durable = self.synced.clone(),
            Loss::Database | Loss::Both => {
                self.durable = empty();
                self.durable.origin = Origin::Lost;
                self.generation = 0;
                if loss == Loss::Both {
                    self.backup = None;
                }
            }
        }
    }

    /// As [`Store::open`] does.
    fn open(&mut self) {
        if let Some(saved) = self.backup.clone()
            && (self.durable.origin == Origin::Lost || self.generation < saved.generation)
        {
            self.load_backup(saved);
        }
        self.save_backup();
        self.synced = self.durable.clone();
    }

    fn load_backup(&mut self, saved: Saved) {
        let before = self.durable.devices.clone();
        for device in &before {
            let pairs_anew = self.durable.origin == Origin::Lost && device.state == DeviceState::Pending;
            let kept = saved.content.devices.iter().any(|kept| kept.ed25519 == device.ed25519);
            if !kept && !pairs_anew {
                apply(&mut self.durable, &Write::RemoveDevice(device.ed25519));
            }
        }
        for mut device in saved.content.devices {
            let same = |known: &&crate::hub::durable::DeviceRow| {
                (known.ed25519, known.x25519) == (device.ed25519, device.x25519)
            };
            if let Some(known) = before.iter().find(same) {
                device.received = device.received.max(known.received);
                device.reserved = device.reserved.max(known.reserved);
            }
            apply(&mut self.durable, &Write::PutDevice(device));
        }
        self.durable.high_water = self.durable.high_water.max(saved.content.high_water);
        self.generation = self.generation.max(saved.generation + 1);
        self.durable.origin = Origin::Backup;
    }

    // The real one.

    fn reopen_twin(&mut self, loss: Loss, unix: u64) {
        let Some((folder, store)) = &mut self.twin else { return };
        drop(store.take());
        if matches!(loss, Loss::Database | Loss::Both) {
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(folder.path().join(format!("{DATABASE}{suffix}")));
            }
        }
        if loss == Loss::Both {
            let _ = std::fs::remove_file(folder.path().join(BACKUP));
        }
        *store = Some(Store::open(folder.path(), names().namespace, false, unix).unwrap().store);
    }

    fn compare(&self) {
        let Some((_, Some(store))) = &self.twin else { return };
        assert_eq!(sorted(store.load().unwrap()), sorted(self.durable.clone()), "the model is the database's");
        let backup = self.backup.as_ref().map(|saved| saved.content.clone());
        let by_key = |backup: Backup| {
            let mut devices = backup.devices;
            devices.sort_by_key(|device| device.ed25519);
            (backup.high_water, devices)
        };
        assert_eq!(store.read_backup().map(by_key), backup.map(by_key), "so is that of the backup");
    }
}

/// Rows that have no order of their own, in one.
fn sorted(mut durable: Durable) -> Durable {
    durable.devices.sort_by_key(|row| row.ed25519);
    durable.sights.sort_by(|(a, x, _), (b, y, _)| (a, x).cmp(&(b, y)));
    durable.answers.sort_by(|a, b| a.item.cmp(&b.item));
    durable.decided.sort_by(|(a, _), (b, _)| a.cmp(b));
    durable
}

/// One change, as the database makes it. What it would refuse is the hub's fault.
fn apply(to: &mut Durable, write: &Write) {
    let device = |to: &mut Durable, key: &Ed25519Public, change: &dyn Fn(&mut crate::hub::durable::DeviceRow)| {
        to.devices.iter_mut().filter(|row| row.ed25519 == *key).for_each(change);
    };
    match write {
        Write::PutDevice(row) => match to.devices.iter_mut().find(|known| known.ed25519 == row.ed25519) {
            Some(known) => *known = row.clone(),
            None => to.devices.push(row.clone()),
        },
        Write::RemoveDevice(key) => {
            to.devices.retain(|row| row.ed25519 != *key);
            to.sights.retain(|(device, _, _)| device != key);
        }
        Write::Received { device: key, counter, last_seen } => device(to, key, &|row| {
            (row.received, row.last_seen) = (*counter, Some(*last_seen));
        }),
        Write::Reserved { device: key, upto } => {
            to.high_water = to.high_water.max(*upto);
            device(to, key, &|row| row.reserved = row.reserved.max(*upto));
        }
        Write::Stale { device: key, stale } => device(to, key, &|row| row.stale = *stale),
        Write::PutItem(row) => {
            demand(to.items.iter().all(|known| known.item.id != row.item.id), || "an item is stored twice".into());
            to.items.push(row.clone());
        }
        Write::RemoveItem(id) => {
            to.items.retain(|row| row.item.id != *id);
            to.sights.retain(|(_, item, _)| item != id);
            to.answers.retain(|row| row.item != *id);
        }
        Write::Leaves { host, leaves_at, linger_secs } => {
            for row in to.items.iter_mut().filter(|row| row.item.host == *host) {
                (row.leaves_at, row.linger_secs) = (*leaves_at, *linger_secs);
            }
        }
        Write::PutSight { device, item, sight } => {
            let known =
                to.devices.iter().any(|row| row.ed25519 == *device) && to.items.iter().any(|row| row.item.id == *item);
            demand(known, || "a sight of what is not stored".into());
            to.sights.retain(|(by, of, _)| (by, of) != (device, item));
            to.sights.push((*device, item.clone(), *sight));
        }
        Write::PutAnswer(row) => {
            let free = to.answers.iter().all(|known| known.item != row.item);
            let known = to.items.iter().any(|known| known.item.id == row.item);
            demand(free && known, || "a second answer, or one to nothing, is stored".into());
            to.answers.push(row.clone());
        }
        Write::RemoveAnswer(item) => to.answers.retain(|row| row.item != *item),
        Write::PutDecided(item, by) => {
            to.decided.retain(|(known, _)| known != item);
            to.decided.push((item.clone(), by.clone()));
        }
        Write::RemoveDecided(item) => to.decided.retain(|(known, _)| known != item),
        Write::SetWindow(window) => to.window = *window,
        Write::SetOrigin(origin) => to.origin = *origin,
    }
}
