//! Looking into the files of a process under test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::canary::traces;

/// Every file below `folder`, with its content. Files that vanish meanwhile are left out.
pub fn read_all(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Ok(content) = fs::read(entry.path())
            {
                found.push((entry.path(), content));
            }
        }
    }
    found
}

/// The files below `folder` that contain `text`, in whatever form.
pub fn containing(folder: &Path, text: &str) -> Vec<PathBuf> {
    let holds = |content: &[u8]| !traces(content, text).is_empty();
    read_all(folder).into_iter().filter(|(_, content)| holds(content)).map(|(path, _)| path).collect()
}

/// The permission bits of a file or folder.
pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

/// Copies the files of a folder whose names are chosen; the other folder is made if need be.
pub(crate) fn copy_files(from: &Path, to: &Path, which: &dyn Fn(&str) -> bool) {
    fs::create_dir_all(to).expect("a folder");
    for name in names(from).into_iter().filter(|name| which(name)) {
        fs::copy(from.join(&name), to.join(&name)).expect("the file can be copied");
    }
}

/// Deletes the files of a folder whose names are chosen.
pub(crate) fn delete_files(folder: &Path, which: &dyn Fn(&str) -> bool) {
    for name in names(folder).into_iter().filter(|name| which(name)) {
        fs::remove_file(folder.join(name)).expect("the file can be deleted");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name")).collect()
}
