//! Implements sign-on by a proxy (`AUTH=proxy`). The proxy sends the name and the groups of a
//! person in headers, and the configuration gives rights to groups. Requests with these headers
//! from all other addresses are refused.
use crate::config::ProxyAuth;
use crate::request::RemoteAddress;
use crate::{ApiError, Code, Result};
use axum::http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};
use store::Store;
use store::keys::Scope;
use store::retried;
use uuid::Uuid;

/// Maximum length of a name in characters.
const MAX_NAME_CHARS: usize = 200;

/// A person whom the proxy has authenticated, and their rights. Each request determines both again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) scopes: Vec<Scope>,
    /// Id and name of the only collection that the person can access; `None` means all.
    pub(crate) collection: Option<(Uuid, String)>,
}

impl Person {
    pub(crate) fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Returns an id that is derived from the name, for limits and fair scheduling.
    pub(crate) fn id(&self) -> Uuid {
        let hash: [u8; 32] = Sha256::digest(self.name.as_bytes()).into();
        let (head, _) = hash.split_first_chunk().expect("a hash has more than 16 bytes");
        Uuid::from_bytes(*head)
    }
}

impl ProxyAuth {
    /// Removes the headers of the proxy from a request, and returns the person. Returns `None` if
    /// the header with the name is missing.
    ///
    /// # Errors
    /// Fails with 401 if the headers come from another address, occur twice or are malformed, with
    /// 403 if no group of the person has rights, and with 404 if the collection of the group does
    /// not exist.
    pub(crate) async fn take_person(
        &self,
        store: &Store,
        headers: &mut HeaderMap,
        remote: Option<RemoteAddress>,
    ) -> Result<Option<Person>> {
        let user = take_header(headers, &self.user_header)?;
        let groups = take_header(headers, &self.groups_header)?;
        if user.is_none() && groups.is_none() {
            return Ok(None);
        }
        let is_trusted = remote.is_some_and(|RemoteAddress(address)| {
            self.addresses.iter().any(|range| range.contains(&address.to_canonical()))
        });
        if !is_trusted {
            let header = if user.is_some() { &self.user_header } else { &self.groups_header };
            let detail = "only the proxies of AUTH_PROXY_ADDRESSES may send this header";
            return Err(refuse(header, detail));
        }
        let Some(name) = user else { return Ok(None) };
        let length = name.chars().count();
        if !(1..=MAX_NAME_CHARS).contains(&length) || name.chars().any(char::is_control) {
            return Err(refuse(&self.user_header, "the name of the person must have 1 to 200 characters"));
        }
        self.rights(store, name, groups.as_deref().unwrap_or_default()).await.map(Some)
    }

    /// Returns the rights of a person. The first entry of the configuration for one of the groups
    /// determines the collection. Further entries for the same collection add their scopes.
    async fn rights(&self, store: &Store, name: String, groups: &str) -> Result<Person> {
        // Authentik separates groups by |, the other proxies by commas.
        let groups: Vec<&str> = groups.split([',', '|']).map(str::trim).collect();
        let mut entries = self.groups.iter().filter(|entry| groups.contains(&entry.group.as_str()));
        let Some(first) = entries.next() else {
            let detail = "no group of this person has rights here; the operator can change AUTH_PROXY_GROUPS";
            return Err(ApiError::new(Code::ScopeMissing, detail).field(self.groups_header.as_str()));
        };
        let mut scopes = first.scopes.clone();
        scopes.extend(
            entries.filter(|entry| entry.collection == first.collection).flat_map(|entry| &entry.scopes),
        );
        scopes.sort_unstable();
        scopes.dedup();
        let collection = match &first.collection {
            Some(name) => {
                let collection = retried("collection", || store.collections().get(name)).await?;
                Some((collection.id, collection.name))
            }
            None => None,
        };
        Ok(Person { name, scopes, collection })
    }
}

/// Removes a header and returns its value without surrounding spaces. An empty value counts as
/// missing.
///
/// # Errors
/// Fails with 401 if the header occurs twice, because one of them may come from the client of the
/// proxy, or if it is not UTF-8.
fn take_header(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<String>> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next().cloned(), values.next());
    if second.is_some() {
        return Err(refuse(
            name,
            "the header occurs twice; the proxy must replace the header of its clients",
        ));
    }
    headers.remove(name);
    let Some(value) = first else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| refuse(name, "the header is not UTF-8"))?;
    Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
}

fn refuse(header: &HeaderName, detail: &str) -> ApiError {
    ApiError::new(Code::Unauthorized, detail)
        .reason("proxy")
        .field(header.as_str())
        .challenge("Bearer realm=\"facecrawl\"".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn repeated_or_undecodable_header_is_refused() {
        let name = HeaderName::from_static("remote-user");
        let mut headers = HeaderMap::new();
        assert_eq!(take_header(&mut headers, &name).unwrap(), None);
        headers.append(&name, " ada ".parse().unwrap());
        assert_eq!(take_header(&mut headers, &name).unwrap().as_deref(), Some("ada"));
        assert!(headers.is_empty(), "no later code sees the header");
        headers.append(&name, "ada".parse().unwrap());
        headers.append(&name, "eve".parse().unwrap());
        assert_eq!(take_header(&mut headers, &name).unwrap_err().code(), Code::Unauthorized);
        let mut headers = HeaderMap::new();
        headers.append(&name, axum::http::HeaderValue::from_bytes(&[0xff]).unwrap());
        assert_eq!(take_header(&mut headers, &name).unwrap_err().code(), Code::Unauthorized);
    }

    #[test]
    fn id_depends_on_the_name_only() {
        let person = |name: &str, scopes: &[Scope]| Person {
            name: name.into(),
            scopes: scopes.to_vec(),
            collection: None,
        };
        assert_eq!(person("ada", &[]).id(), person("ada", &[Scope::Read]).id());
        assert_ne!(person("ada", &[]).id(), person("ben", &[]).id());
    }
}
