"""Keys and certificates, made anew at each start, and how a relay is told of them."""

import datetime
import ipaddress
import json
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from .apns import Apns
from .common import base64url
from .fcm import Account, Fcm, TokenEndpoint
from .webpush import WebPush, raw_point

TOKEN_URI = "https://oauth2.googleapis.com/token"


def pem(key) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(key) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


class Setup:
    """One account at each service."""

    def __init__(self):
        self.apns_key = ec.generate_private_key(ec.SECP256R1())
        self.fcm_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.vapid_key = ec.generate_private_key(ec.SECP256R1())
        key_id, team = secrets.token_hex(5).upper(), secrets.token_hex(5).upper()
        self.apns = Apns(key_id, team, "net.skaldagent.inbox", public_pem(self.apns_key))
        project = f"skald-{secrets.token_hex(4)}"
        email = f"relay@{project}.iam.gserviceaccount.com"
        account = Account(project, email, secrets.token_hex(20), TOKEN_URI, public_pem(self.fcm_key))
        self.token = TokenEndpoint(account)
        self.fcm = Fcm(account, self.token)
        self.web = WebPush(self.vapid_key.public_key(), "mailto:operator@relay.example")

    def services(self):
        return {service.name: service for service in (self.apns, self.token, self.fcm, self.web)}

    def webpush_key(self) -> str:
        """What browsers subscribe with."""
        return base64url(raw_point(self.vapid_key.public_key()))

    def variables(self) -> dict[str, str]:
        """A relay's."""
        account = self.fcm.account
        file = {
            "type": "service_account",
            "project_id": account.project,
            "private_key_id": account.key_id,
            "private_key": pem(self.fcm_key),
            "client_email": account.email,
            "client_id": "117000000000000000000",
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": account.token_uri,
        }
        vapid = self.vapid_key.private_numbers().private_value.to_bytes(32, "big")
        return {
            "APNS_KEY": pem(self.apns_key),
            "APNS_KEY_ID": self.apns.key_id,
            "APNS_TEAM_ID": self.apns.team_id,
            "APNS_TOPIC": self.apns.topic,
            "FCM_SERVICE_ACCOUNT": json.dumps(file),
            "VAPID_PRIVATE_KEY": base64url(vapid),
            "VAPID_SUBJECT": self.web.subject,
        }


def certificates(folder: Path) -> tuple[str, str, str]:
    """Files: a certificate authority, a certificate for this machine, its key."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Stand-in for Apple's certificate authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)

    def build(name: x509.Name, public) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))

    root = build(issuer, authority.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(authority, hashes.SHA256())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = build(subject, key.public_key()).add_extension(names, critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.sign(authority, hashes.SHA256())
    paths = [folder / name for name in ("ca.pem", "certificate.pem", "key.pem")]
    for path, content in zip(paths, (root.public_bytes(Encoding.PEM), leaf.public_bytes(Encoding.PEM), pem(key).encode())):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return tuple(str(path) for path in paths)
