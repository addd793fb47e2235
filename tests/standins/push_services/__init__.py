"""Stand-ins for the services that wake phones: Apple's, Google's and those of browsers.

Each module knows one service by its public documentation and by the push protocol, and judges a request without doing any
I/O: `apns`, `fcm`, `webpush`. `serving` puts them behind sockets, `record` keeps what came and what is to be answered,
`control` is how a test asks and tells. Nothing here is fit for anything but tests: keys lie about, and all is kept.
"""
