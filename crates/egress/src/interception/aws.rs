//! AWS signatures (Signature Version 4): checks whether a request was signed with a key, and signs
//! it with another.
//!
//! This module must not depend on the owner of a key.
//!
//! Facts: AWS General Reference, "Signature Version 4 signing process".

use std::fmt::Write;

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::http::head::{RequestHead, field_values};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const PAYLOAD_HASH_FIELD: &str = "x-amz-content-sha256";

/// Form of a path in the signed text; services differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathForm {
    /// The path as sent.
    Plain,
    /// The path escaped once more.
    Escaped,
}

/// Signature of a request.
#[derive(Clone, Debug)]
pub(super) struct AwsSignature {
    /// `ID/DATE/REGION/SERVICE/aws4_request`.
    credential: String,
    /// In the order in which they were signed.
    fields: Vec<String>,
    signature: String,
    form: PathForm,
    payload: String,
}

/// Returns whether the request contains the hash of its body.
pub(super) fn tells_payload(request: &RequestHead) -> bool {
    field_values(&request.fields, PAYLOAD_HASH_FIELD).next().is_some()
}

/// Returns whether each chunk of its body has its own signature.
pub(super) fn signs_chunks(request: &RequestHead) -> bool {
    field_values(&request.fields, PAYLOAD_HASH_FIELD).any(|value| value.starts_with(b"STREAMING-AWS4"))
}

impl AwsSignature {
    /// Reads the signature of a request; `None` if it has no signature, or more than one.
    pub(super) fn from_request(request: &RequestHead) -> Option<Self> {
        let mut all = field_values(&request.fields, "authorization");
        let (Some(value), None) = (all.next(), all.next()) else { return None };
        let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        if scheme != ALGORITHM {
            return None;
        }
        let part = |name: &str| {
            let found = rest.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
            found.map(str::to_owned)
        };
        let signed = Self {
            credential: part("Credential")?,
            fields: part("SignedHeaders")?.split(';').map(str::to_owned).collect(),
            signature: part("Signature")?,
            form: PathForm::Plain,
            payload: String::new(),
        };
        (signed.parse_scope().is_some() && signed.fields.len() <= request.fields.len()).then_some(signed)
    }

    /// Returns `DATE/REGION/SERVICE/aws4_request`, and its parts.
    fn parse_scope(&self) -> Option<(&str, [&str; 3])> {
        let (_, scope) = self.credential.split_once('/')?;
        let mut parts = scope.split('/');
        let three = [parts.next()?, parts.next()?, parts.next()?];
        (parts.next() == Some("aws4_request") && parts.next().is_none()).then_some((scope, three))
    }

    /// Returns the signature if it was made with this key.
    pub(super) fn made_with(mut self, request: &RequestHead, key: &[u8], body: &[u8]) -> Option<Self> {
        self.payload = match field_values(&request.fields, PAYLOAD_HASH_FIELD).next() {
            Some(hash_value) => String::from_utf8(hash_value.to_vec()).ok()?,
            None => hash(body),
        };
        [PathForm::Plain, PathForm::Escaped].into_iter().find_map(|form| {
            self.form = form;
            (self.compute_signature(request, key)? == self.signature).then(|| self.clone())
        })
    }

    /// Signs the request with this key in the same way.
    pub(super) fn sign_request(&self, request: &mut RequestHead, key: &[u8]) {
        // The same computation succeeded before, so it succeeds now.
        let Some(signature) = self.compute_signature(request, key) else { return };
        let fields = self.fields.join(";");
        let credential = &self.credential;
        let value = format!("{ALGORITHM} Credential={credential}, SignedHeaders={fields}, Signature={signature}");
        for field in request.fields.iter_mut().filter(|f| f.name.eq_ignore_ascii_case("authorization")) {
            field.value = value.clone().into_bytes();
        }
    }

    fn compute_signature(&self, request: &RequestHead, key: &[u8]) -> Option<String> {
        let (scope, [date, region, service]) = self.parse_scope()?;
        let time = field_values(&request.fields, "x-amz-date").chain(field_values(&request.fields, "date")).next()?;
        let time = std::str::from_utf8(time).ok()?;
        let canonical = self.canonical_request(request)?;
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hash(canonical.as_bytes()));
        let mut signing = [b"AWS4", key].concat();
        for part in [date, region, service, "aws4_request"] {
            signing = hmac_sha256(&signing, part.as_bytes());
        }
        Some(HEXLOWER.encode(&hmac_sha256(&signing, text.as_bytes())))
    }

    fn canonical_request(&self, request: &RequestHead) -> Option<String> {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let path = match self.form {
            PathForm::Plain => path.to_owned(),
            PathForm::Escaped => percent_encode(path.as_bytes(), PATH_ESCAPES).to_string(),
        };
        let mut text = format!("{}\n{path}\n{}\n", request.method, canonical_query(query));
        for name in &self.fields {
            let mut joined = String::new();
            for value in field_values(&request.fields, name) {
                let words: Vec<&str> = std::str::from_utf8(value).ok()?.split_ascii_whitespace().collect();
                joined.push_str(if joined.is_empty() { "" } else { "," });
                joined.push_str(&words.join(" "));
            }
            let _ = writeln!(text, "{name}:{joined}");
        }
        let _ = write!(text, "\n{}\n{}", self.fields.join(";"), self.payload);
        Some(text)
    }
}

fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

fn hash(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Bytes to escape in a query: all except unreserved letters (RFC 3986, 2.3).
const QUERY_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Bytes to escape in a path.
const PATH_ESCAPES: &AsciiSet = &QUERY_ESCAPES.remove(b'/');

fn canonical_query(query: &str) -> String {
    let escape = |text: &str| {
        let decoded: Vec<u8> = percent_decode_str(text).collect();
        percent_encode(&decoded, QUERY_ESCAPES).to_string()
    };
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (escape(name), escape(value))
    };
    let mut pairs: Vec<_> = query.split('&').filter(|part| !part.is_empty()).map(pair).collect();
    pairs.sort();
    pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn request(text: &str) -> RequestHead {
        RequestHead::parse_head(text.replace('\n', "\r\n").as_bytes()).unwrap()
    }

    /// Example from the documentation of the signing process.
    const EXAMPLE: &str = "GET /?Action=ListUsers&Version=2010-05-08 HTTP/1.1\nHost: iam.amazonaws.com\nContent-Type: application/x-www-form-urlencoded; charset=utf-8\nX-Amz-Date: 20150830T123600Z\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7\n\n";

    #[test]
    fn the_documented_signature_is_the_one_that_is_made() {
        let mut request = request(EXAMPLE);
        let signed = AwsSignature::from_request(&request).unwrap();
        assert!(signed.clone().made_with(&request, b"another key", b"").is_none());
        assert!(signed.clone().made_with(&request, KEY, b"a body").is_none());
        let signed = signed.made_with(&request, KEY, b"").unwrap();
        let before = request.clone();
        signed.sign_request(&mut request, KEY);
        assert_eq!(request, before);
        signed.sign_request(&mut request, b"another key");
        assert_ne!(request, before);
        assert!(AwsSignature::from_request(&request).unwrap().made_with(&request, b"another key", b"").is_some());
    }

    /// Example from the S3 documentation: the request contains the payload hash, and the path is
    /// signed as it is.
    #[test]
    fn an_object_of_s3() {
        let text = "GET /test.txt HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nRange: bytes=0-9\nx-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\nx-amz-date: 20130524T000000Z\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41\n\n";
        let request = request(text);
        let key = b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        assert!(tells_payload(&request));
        assert!(AwsSignature::from_request(&request).unwrap().made_with(&request, key, b"").is_some());
    }

    #[test]
    fn queries_and_paths() {
        assert_eq!(canonical_query("b=2&a=%7e+x&a=1&c"), "a=1&a=~%2Bx&b=2&c=");
        assert_eq!(percent_encode("/a%20b/ü".as_bytes(), PATH_ESCAPES).to_string(), "/a%2520b/%C3%BC");
        assert_eq!(percent_decode_str("%zz%2").collect::<Vec<u8>>(), b"%zz%2");
    }

    #[test]
    fn malformed_signatures() {
        for authorization in [
            "Bearer x",
            "AWS4-HMAC-SHA256 x",
            "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4, SignedHeaders=host, Signature=0",
            "AWS4-ECDSA-P256-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature=0",
        ] {
            assert!(
                AwsSignature::from_request(&request(&format!("GET / HTTP/1.1\nAuthorization: {authorization}\n\n")))
                    .is_none()
            );
        }
    }
}
