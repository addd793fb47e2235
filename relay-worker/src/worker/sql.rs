//! [`Sql`] over the database of a Durable Object.

use worker::js_sys::{Array, Function, Reflect, Uint8Array};
use worker::wasm_bindgen::{JsCast, JsValue, closure::ScopedClosure};
use worker::{SqlStorage, SqlStorageValue, State, durable};

use crate::store::{Param, Row, Sql, SqlError, Value};

/// The object's database.
pub(super) struct ObjectSql {
    storage: durable::Storage,
    sql: SqlStorage,
}

impl ObjectSql {
    pub(super) fn new(state: &State) -> Self {
        let storage = state.storage();
        Self { sql: storage.sql(), storage }
    }
}

impl Sql for ObjectSql {
    fn exec(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        let params: Vec<JsValue> = params.iter().map(to_js).collect();
        let cursor = self.sql.exec_raw(statement, params).map_err(refused)?;
        cursor.raw().map(|row| row.map_err(refused)?.into_iter().map(from_js).collect()).collect()
    }

    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
        let storage = self.storage.as_raw();
        let run: Function = Reflect::get(storage, &"transactionSync".into())
            .and_then(JsCast::dyn_into)
            .map_err(|error| refused(error.into()))?;
        let mut work = Some(work);
        let mut result = None;
        // The closure throws to undo the transaction; what it throws is known already.
        let outcome = {
            let mut body = || -> Result<JsValue, JsValue> {
                let Some(work) = work.take() else { return Err(JsValue::NULL) };
                let done = work();
                let undo = done.is_err();
                result = Some(done);
                if undo { Err(JsValue::from_str("undone")) } else { Ok(JsValue::UNDEFINED) }
            };
            let closure: ScopedClosure<'_, dyn FnMut() -> Result<JsValue, JsValue>> =
                ScopedClosure::borrow_mut(&mut body);
            run.apply(storage, &Array::of1(closure.as_js_value()))
        };
        match (outcome, result) {
            (Ok(_), Some(done)) | (Err(_), Some(done @ Err(_))) => done,
            (Err(error), _) => Err(refused(error.into())),
            (Ok(_), None) => Err(SqlError("the transaction did not run".to_owned())),
        }
    }
}

fn to_js(param: &Param<'_>) -> JsValue {
    match param {
        Param::Null => JsValue::NULL,
        #[allow(clippy::cast_precision_loss)]
        Param::Int(n) => JsValue::from_f64(*n as f64),
        Param::Text(text) => JsValue::from_str(text),
        Param::Blob(bytes) => Uint8Array::from(*bytes).into(),
    }
}

fn from_js(value: SqlStorageValue) -> Result<Value, SqlError> {
    Ok(match value {
        SqlStorageValue::Null => Value::Null,
        SqlStorageValue::Boolean(yes) => Value::Int(i64::from(yes)),
        SqlStorageValue::Integer(n) => Value::Int(n),
        SqlStorageValue::Float(_) => return Err(SqlError("a number that is no exact integer".to_owned())),
        SqlStorageValue::String(text) => Value::Text(text),
        SqlStorageValue::Blob(bytes) => Value::Blob(bytes),
    })
}

#[allow(clippy::needless_pass_by_value)] // the shape that map_err wants
fn refused(error: worker::Error) -> SqlError {
    SqlError(error.to_string())
}
