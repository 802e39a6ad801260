-- Names of people are stored and found with composed characters (NFC), so that `é` has one form.
-- Earlier versions stored them as they were sent, and only an import composed them. Databases with
-- another encoding cannot compose characters.
do $$ begin
    if current_setting('server_encoding') = 'UTF8' then
        update subjects set name = normalize(name, nfc) where name is not null and name is not nfc normalized;
    end if;
end $$;
