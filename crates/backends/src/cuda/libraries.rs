//! Libraries that are opened at run time, and what the system says where it does not open one.

use libloading::Library;
use std::error::Error;
use std::ffi::OsStr;

/// Opens a library. Errors: the system's words, which libloading keeps apart from its own.
///
/// # Safety
/// The library's initialisers run in this process.
pub(crate) unsafe fn open(path: &OsStr) -> Result<Library, String> {
    // SAFETY: the caller vouches for the initialisers.
    unsafe { Library::new(path) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), |why| why.to_string()))
}

/// A function of a library. None: it has none of that name.
///
/// # Safety
/// The symbol must have the type.
pub(crate) unsafe fn function<T: Copy>(library: &Library, symbol: &str) -> Option<T> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<T>(symbol.as_bytes()) }.ok().map(|found| *found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]
mod tests {
    use super::*;
    use std::fs;

    fn why(path: &OsStr) -> String {
        // SAFETY: what is opened here is no library.
        unsafe { open(path) }.map(|_| ()).unwrap_err()
    }

    #[test]
    fn what_is_not_there_and_what_is_no_library_get_words_of_their_own() {
        let text = std::env::temp_dir().join(format!("loadmaster-no-library-{}.so", std::process::id()));
        fs::write(&text, "not a library, but longer than the header of one: ".repeat(8)).unwrap();
        let (absent, no_library) = (why(OsStr::new("/nonexistent/lib.so")), why(text.as_os_str()));
        fs::remove_file(&text).unwrap();
        assert!(absent.contains("/nonexistent/lib.so") && absent != "dlopen failed", "{absent}");
        assert!(
            !no_library.contains("dlopen failed") && no_library != absent.replace("/nonexistent/lib.so", ""),
            "{no_library}"
        );
        assert!(no_library.contains(&*text.to_string_lossy()), "{no_library}");
    }
}
