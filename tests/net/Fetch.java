import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/** Fetches one address with the standard client. */
public final class Fetch {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(20)).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        System.out.print(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
