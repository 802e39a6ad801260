//! Writes portraits of people who do not exist: `portraits FOLDER PEOPLE VIEWS` writes `0-0.jpg`,
//! `0-1.jpg`, … (person, view).
use std::path::PathBuf;
use testing::people::portrait;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(people), Some(views)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        anyhow::bail!("usage: portraits FOLDER PEOPLE VIEWS");
    };
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    for person in 0..people.parse()? {
        for view in 0..views.parse()? {
            std::fs::write(folder.join(format!("{person}-{view}.jpg")), portrait(person, view))?;
        }
    }
    Ok(())
}
