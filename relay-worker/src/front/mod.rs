//! What the stateless Worker in front of the namespaces decides, without I/O: which request goes where ([`routes`]), and
//! how many new connections an address may open ([`address_limit`]). The glue in `worker` acts on it.

pub mod address_limit;
pub mod routes;
