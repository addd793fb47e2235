# The bare object on raw workerd. Date and flags are those of wrangler.toml; scripts/bench refuses to run if they differ.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "bare", worker = .bare),
    (name = "data", disk = (path = "data", writable = true)),
  ],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "bare")],
);

const bare :Workerd.Worker = (
  modules = [(name = "bare.js", esModule = embed "bare.js")],
  compatibilityDate = "2026-03-10",
  compatibilityFlags = ["no_web_socket_compression"],
  bindings = [
    (name = "BARE", durableObjectNamespace = (className = "Bare")),
    (name = "KEEPER", durableObjectNamespace = (className = "Keeper")),
  ],
  durableObjectNamespaces = [
    (className = "Bare", uniqueKey = "bare", enableSql = true),
    (className = "Keeper", uniqueKey = "keeper", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "data"),
);
