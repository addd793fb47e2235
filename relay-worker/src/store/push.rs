//! What a namespace remembers of its pushes: one row for each device that there is anything to remember of, so that a turn
//! costs one row however many messages ring in it. The table comes with the first of them: databases from before it have
//! none, and a namespace whose devices are never pushed to has none either.

use super::{Columns, Param, Sql, SqlError, Store, corrupt};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS push (member INTEGER PRIMARY KEY, state BLOB NOT NULL) STRICT";
const NAME: &str = "push";

impl<S: Sql> Store<S> {
    /// What is remembered, by member number; the engine reads it.
    pub fn pushes(&self) -> Result<Vec<(u32, Vec<u8>)>, SqlError> {
        if !self.has_table(NAME)? {
            return Ok(Vec::new());
        }
        let rows = self.sql.exec("SELECT member, state FROM push", &[])?;
        let parse = |row| {
            let mut columns = Columns::of(row);
            let member = u32::try_from(columns.int()?).map_err(|_| corrupt("member number"))?;
            Ok((member, columns.blob()?))
        };
        rows.into_iter().map(parse).collect()
    }

    /// Writes a device's row.
    pub fn put_push(&self, member: u32, state: &[u8]) -> Result<(), SqlError> {
        self.sql.exec(TABLE, &[])?;
        let statement = "INSERT INTO push (member, state) VALUES (?, ?)
            ON CONFLICT (member) DO UPDATE SET state = excluded.state";
        self.sql.exec(statement, &[Param::Int(member.into()), Param::Blob(state)]).map(drop)
    }

    /// Forgets a device's row, if it has one.
    pub fn delete_push(&self, member: u32) -> Result<(), SqlError> {
        if self.has_table(NAME)? {
            self.sql.exec("DELETE FROM push WHERE member = ?", &[Param::Int(member.into())])?;
        }
        Ok(())
    }
}
