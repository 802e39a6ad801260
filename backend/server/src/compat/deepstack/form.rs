//! Reads the form of a request. `api_key`, `userid` and `min_confidence` are text fields. Parts
//! with other names are images.
use crate::auth::{Caller, check_scope, no_key, parse_key};
use crate::extract::image::{check_image, form_parts};
use crate::extract::media_type;
use crate::request::Peer;
use crate::{ApiError, AppState, Auth, Code, Result, Scope};
use axum::extract::Request;
use bytes::Bytes;

/// Names of the text fields.
const API_KEY: &str = "api_key";
const USER_ID: &str = "userid";
const MIN_CONFIDENCE: &str = "min_confidence";
/// Maximum length of a text field in bytes.
const MAX_TEXT_BYTES: usize = 1000;
/// Maximum number of parts.
const MAX_PARTS: usize = 16;
/// Maximum size of a form without images in bytes.
const MAX_SMALL_FORM_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Form {
    api_key: Option<String>,
    user_id: Option<String>,
    min_confidence: Option<String>,
    images: Vec<Bytes>,
}

impl Form {
    /// Reads the form, as `multipart/form-data` or, without images, URL-encoded.
    async fn read(state: &AppState, request: Request) -> Result<Self> {
        let mut form = Self::default();
        let fields = match media_type(request.headers()).as_str() {
            // Some clients send no body if the form has no field. The middleware rejects a body
            // without a content type.
            "" => Vec::new(),
            "application/x-www-form-urlencoded" => small_form(request).await?,
            _ => form_parts(request, state, MAX_PARTS).await?,
        };
        for (name, bytes) in fields {
            let slot = match name.as_str() {
                API_KEY => &mut form.api_key,
                USER_ID => &mut form.user_id,
                MIN_CONFIDENCE => &mut form.min_confidence,
                _ => {
                    check_image(&name, &bytes)?;
                    form.images.push(bytes);
                    continue;
                }
            };
            // Clients send an empty `api_key` if they have none.
            *slot = Some(text(&name, &bytes)?).filter(|text| !text.is_empty());
        }
        Ok(form)
    }

    pub(super) fn min_confidence(&self) -> Result<Option<f64>> {
        let Some(text) = &self.min_confidence else { return Ok(None) };
        let value = text.trim().parse().ok().filter(|value| (0.0..=1.0).contains(value));
        let error = || {
            ApiError::for_field(Code::InvalidField, MIN_CONFIDENCE, "the value must be a number from 0 to 1")
        };
        value.map(Some).ok_or_else(error)
    }

    pub(super) fn user_id(&self) -> Result<String> {
        let name = self.user_id.clone().filter(|name| !name.trim().is_empty());
        name.ok_or_else(|| ApiError::for_field(Code::InvalidField, USER_ID, "the field is missing"))
    }

    /// Returns exactly this number of images.
    pub(super) fn images<const N: usize>(&self) -> Result<[Bytes; N]> {
        <[Bytes; N]>::try_from(self.images.clone()).map_err(|images| {
            ApiError::new(
                Code::MissingImage,
                format!("the form must have {N} image(s), but has {}", images.len()),
            )
        })
    }

    pub(super) fn all_images(&self) -> Result<Vec<Bytes>> {
        if self.images.is_empty() {
            return Err(ApiError::new(Code::MissingImage, "the form has no image"));
        }
        Ok(self.images.clone())
    }
}

/// Reads the form of a request, and runs `operation` for its caller. The key is in a header or in
/// the form. If the key is in the form, the form is read before the key is checked. Until then, the
/// limits of the sender's address apply.
///
/// # Errors
/// Fails with 401 without a valid key, with 403 if the key lacks the scope, and with 429 if the key
/// has used up its requests.
pub(super) async fn with_form<T>(
    state: &AppState,
    caller: Caller,
    request: Request,
    scope: Scope,
    operation: impl AsyncFnOnce(&Form, &Caller) -> Result<T>,
) -> Result<T> {
    let peer = Peer::from_extensions(request.extensions());
    let form = Form::read(state, request).await?;
    if state.config.auth == Auth::None || caller.key().is_some() || caller.person().is_some() {
        return operation(&form, &caller).await;
    }
    let caller = caller_with_key(state, form.api_key.as_deref(), peer, scope).await?;
    let operation = async {
        // Until now, the request used the share of its address. Nobody who has a share of the
        // caller waits for that of an address, so this cannot deadlock.
        let mut share = state.connection_shares.open();
        share.acquire(1).await;
        operation(&form, &caller).await
    };
    caller.id(peer).scope(operation).await
}

/// Returns the caller with the key of a form.
async fn caller_with_key(state: &AppState, key: Option<&str>, peer: Peer, scope: Scope) -> Result<Caller> {
    let store = &state.services.store;
    let hash = parse_key(key.ok_or_else(no_key)?)?;
    let key = state.keyring.find(store, &hash, Some(peer)).await?;
    tracing::Span::current().record("key_id", tracing::field::display(key.id));
    check_scope(&key, scope)?;
    state.rates.acquire(&key).map_err(|(error, _)| error)?;
    Ok(Caller::with_key(store, key, hash))
}

fn text(name: &str, bytes: &Bytes) -> Result<String> {
    let text =
        std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_TEXT_BYTES && !text.contains('\0'));
    let error = || {
        let allowed = format!("the value must be UTF-8 text of at most {MAX_TEXT_BYTES} bytes");
        ApiError::for_field(Code::InvalidField, name, allowed)
    };
    text.map(str::to_owned).ok_or_else(error)
}

async fn small_form(request: Request) -> Result<Vec<(String, Bytes)>> {
    let bytes = crate::extract::read_whole(request, MAX_SMALL_FORM_BYTES, "the form").await?;
    let pairs = url::form_urlencoded::parse(&bytes);
    Ok(pairs.map(|(name, value)| (name.into_owned(), Bytes::from(value.into_owned().into_bytes()))).collect())
}
