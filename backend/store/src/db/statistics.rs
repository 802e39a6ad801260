//! The planner's statistics of tables that grow quickly in a new database.
//!
//! In a new database, autovacuum may take a minute to analyse a table. Until then, the planner does
//! not know that most images are in one collection. Each search for near-duplicates then reads the
//! whole collection. With 1,900 images, a search took 1.0 ms instead of 0.3 ms.
use crate::StoreError;
use crate::db::schema::Schema;
use sqlx::AssertSqlSafe;

/// Tables that grow while a crawl stores images.
const TABLES: [&str; 6] = ["faces", "image_sources", "image_urls", "image_visits", "images", "pages"];
/// Number of rows above which autovacuum alone analyses a table.
const MAX_ROWS: f32 = 200_000.0;

impl Schema<'_> {
    /// Analyses the tables in which at least as many rows changed as they had at their last
    /// analysis. Skips a table that another session is analysing or vacuuming. Returns the number
    /// of selected tables, including skipped ones.
    pub async fn refresh_statistics(&self) -> Result<usize, StoreError> {
        let grown: Vec<String> = sqlx::query_scalar(
            "select t.relname::text from pg_stat_user_tables t join pg_class c on c.oid = t.relid
             where t.schemaname = current_schema() and t.relname = any($1) and c.reltuples < $2
               and t.n_mod_since_analyze >= greatest(c.reltuples, 1)
             order by t.relname",
        )
        .bind(TABLES.as_slice())
        .bind(MAX_ROWS)
        .fetch_all(self.0)
        .await?;
        if !grown.is_empty() {
            // Built at run time from the names above, because a command has no parameters.
            let sql = format!("analyze (skip_locked) {}", grown.join(", "));
            sqlx::query(AssertSqlSafe(sql)).execute(self.0).await?;
        }
        Ok(grown.len())
    }
}
